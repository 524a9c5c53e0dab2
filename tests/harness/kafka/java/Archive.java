import java.net.ServerSocket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;

/**
 * Loads the classes that a broker, a producer and a consumer need, so that the JVM can archive them when this ends
 * (-XX:ArchiveClassesAtExit): each later JVM of the harness then starts with half the CPU.
 *
 * <p>Usage: Archive EMPTY_FOLDER
 */
public final class Archive {
    private static final String CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAA";

    private Archive() {}

    public static void main(String[] arguments) throws Exception {
        Path folder = Path.of(arguments[0]);
        int port = freePort();
        int controller = freePort();
        Path server = folder.resolve("server.properties");
        write(server, Map.of(
                "process.roles", "broker,controller",
                "node.id", "1",
                "controller.quorum.voters", "1@127.0.0.1:" + controller,
                "controller.listener.names", "CONTROLLER",
                "listeners", "PLAINTEXT://127.0.0.1:" + port + ",CONTROLLER://127.0.0.1:" + controller,
                "transaction.state.log.replication.factor", "1",
                "transaction.state.log.min.isr", "1",
                "transaction.state.log.num.partitions", "1",
                "log.dirs", folder.resolve("data").toString()));
        Thread broker = new Thread(() -> {
            try {
                Broker.main(new String[] {server.toString(), CLUSTER_ID});
            } catch (Exception error) {
                throw new IllegalStateException(error);
            }
        });
        broker.setDaemon(true);
        broker.start();

        Path client = folder.resolve("client.properties");
        write(client, Map.of("bootstrap.servers", "127.0.0.1:" + port));
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", "127.0.0.1:" + port))) {
            admin.createTopics(List.of(new NewTopic("t", 1, (short) 1))).all().get();
        }
        Load.main(new String[] {"client=" + client, "topic=t", "records=10", "keys=true", "headers=2"});
        Load.main(new String[] {"client=" + client, "topic=t", "transactional_id=t", "abort_every=1"});
        Dump.main(new String[] {"client=" + client, "topic=t", "mode=records"});
        Dump.main(new String[] {"client=" + client, "topic=t", "mode=digest", "isolation=read_committed"});
        System.exit(0);
    }

    private static void write(Path file, Map<String, String> lines) throws java.io.IOException {
        Properties properties = new Properties();
        properties.putAll(lines);
        try (var writer = Files.newBufferedWriter(file)) {
            properties.store(writer, null);
        }
    }

    private static int freePort() throws java.io.IOException {
        try (ServerSocket socket = new ServerSocket(0)) {
            return socket.getLocalPort();
        }
    }
}
