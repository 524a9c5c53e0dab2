import java.net.ServerSocket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.connect.mirror.MirrorMaker;

/**
 * Loads the classes that a broker, a producer, a consumer and, where the release has it, MirrorMaker 2 need, so that the
 * JVM archives them at the end (-XX:ArchiveClassesAtExit). Each later JVM of the harness then needs half the CPU to start.
 *
 * <p>Usage: Archive EMPTY_FOLDER
 */
public final class Archive {
    private static final String CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAA";
    private static final long MIRROR_MAX_NANOS = 60_000_000_000L;

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
                "offsets.topic.replication.factor", "1",
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
            run(client, folder, admin, port);
        }
        Runtime.getRuntime().halt(0); // in a clean stop, MirrorMaker would wait for the broker, which also stops
    }

    private static void run(Path client, Path folder, Admin admin, int port) throws Exception {
        Load.main(new String[] {"client=" + client, "topic=t", "records=10", "keys=true", "headers=2"});
        Load.main(new String[] {"client=" + client, "topic=t", "transactional_id=t", "abort_every=1"});
        Dump.main(new String[] {"client=" + client, "topic=t", "mode=records"});
        Dump.main(new String[] {"client=" + client, "topic=t", "mode=digest", "isolation=read_committed"});
        if (!hasMirrorMaker()) {
            return;
        }
        // Copies from the broker to itself.
        Path flow = folder.resolve("mm2.properties");
        write(flow, mirror("127.0.0.1:" + port));
        Thread mirror = new Thread(() -> MirrorMaker.main(new String[] {flow.toString()}));
        mirror.setDaemon(true);
        mirror.start();
        TopicPartition copy = new TopicPartition("A.t", 0);
        long end = System.nanoTime() + MIRROR_MAX_NANOS;
        while (!(admin.listTopics().names().get().contains(copy.topic()) && size(admin, copy) > 0)) {
            if (System.nanoTime() > end) {
                throw new IllegalStateException("MirrorMaker has copied nothing in a minute");
            }
            Thread.sleep(200);
        }
    }

    private static boolean hasMirrorMaker() {
        try {
            Class.forName("org.apache.kafka.connect.mirror.MirrorMaker");
            return true;
        } catch (ClassNotFoundException error) {
            return false;
        }
    }

    private static long size(Admin admin, TopicPartition partition) throws Exception {
        return admin.listOffsets(Map.of(partition, OffsetSpec.latest())).partitionResult(partition).get().offset();
    }

    private static Map<String, String> mirror(String address) {
        Map<String, String> lines = new HashMap<>(Map.of(
                "clusters", "A, B",
                "A.bootstrap.servers", address,
                "B.bootstrap.servers", address,
                "A.plugin.discovery", "service_load",
                "B.plugin.discovery", "service_load",
                "A->B.enabled", "true",
                "A->B.topics", "t",
                "B->A.enabled", "false"));
        for (String name : List.of("", "checkpoints.topic.", "heartbeats.topic.", "offset-syncs.topic.",
                "A.offset.storage.", "A.config.storage.", "A.status.storage.",
                "B.offset.storage.", "B.config.storage.", "B.status.storage.")) {
            lines.put(name + "replication.factor", "1");
        }
        return lines;
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
