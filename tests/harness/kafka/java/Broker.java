import java.io.IOException;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.common.utils.Exit;

/**
 * Formats empty storage and runs a Kafka node in the same JVM, which takes two seconds less than two programs.
 *
 * <p>Usage: Broker server.properties CLUSTER_ID [further arguments of "kafka-storage format"]
 *
 * <p>With the property zookeeper.connect it runs ZooKeeper in the same JVM instead, from the file zookeeper.properties beside
 * server.properties. ZooKeeper then starts and ends with the node.
 */
public final class Broker {
    /** Sessions last 6 s; ZooKeeper counts them anew when it starts. */
    private static final Duration SESSION_WAIT = Duration.ofSeconds(60);

    private static final Duration POLL = Duration.ofMillis(100);

    private Broker() {}

    public static void main(String[] arguments) throws Exception {
        Path server = Path.of(arguments[0]);
        Properties settings = new Properties();
        try (var reader = Files.newBufferedReader(server)) {
            settings.load(reader);
        }
        if (settings.containsKey("zookeeper.connect")) {
            startZooKeeper(server.resolveSibling("zookeeper.properties"));
            awaitEndOfEarlierSession(settings.getProperty("zookeeper.connect"));
        } else if (!Files.exists(Path.of(settings.getProperty("log.dirs"), "meta.properties"))) {
            List<String> format =
                    new ArrayList<>(List.of("format", "--config", arguments[0], "--cluster-id", arguments[1]));
            format.addAll(List.of(arguments).subList(2, arguments.length));
            int status = format(format.toArray(String[]::new));
            if (status != 0) {
                System.exit(status);
            }
        }
        kafka.Kafka.main(new String[] {arguments[0]});
    }

    private static int format(String[] arguments) {
        try {
            return kafka.tools.StorageTool.execute(arguments, System.err);
        } catch (NoSuchMethodError error) {
            return formatByMain(arguments);
        }
    }

    /** Before Kafka 3.7, the tool has only a main method, which ends the JVM. */
    private static int formatByMain(String[] arguments) {
        Exit.setExitProcedure((status, message) -> {
            throw new Ended(status);
        });
        try {
            kafka.tools.StorageTool.main(arguments);
            return 0;
        } catch (Ended ended) {
            return ended.status;
        } finally {
            Exit.resetExitProcedure();
        }
    }

    /** The releases that need ZooKeeper bring its classes; the release that this is compiled with does not. */
    private static void startZooKeeper(Path properties) throws Exception {
        var main = Class.forName("org.apache.zookeeper.server.ZooKeeperServerMain").getMethod("main", String[].class);
        Thread server = new Thread(() -> {
            try {
                main.invoke(null, (Object) new String[] {properties.toString()});
            } catch (ReflectiveOperationException error) {
                throw new IllegalStateException(error);
            }
        });
        server.setDaemon(true);
        server.start();
    }

    /** A node that finds the registration of a killed one does not start: that session first has to expire. */
    private static void awaitEndOfEarlierSession(String address) throws InterruptedException {
        int colon = address.lastIndexOf(':');
        String host = address.substring(0, colon);
        int port = Integer.parseInt(address.substring(colon + 1));
        long deadline = System.nanoTime() + SESSION_WAIT.toNanos();
        while (System.nanoTime() < deadline) {
            String sessions = sessions(host, port);
            if (sessions.contains("Sessions with Ephemerals") && !sessions.contains("/brokers/ids/")) {
                return;
            }
            Thread.sleep(POLL.toMillis());
        }
    }

    /** Returns ZooKeeper's response to its command "dump"; empty while it does not listen. */
    private static String sessions(String host, int port) {
        try (var socket = new Socket(host, port)) {
            socket.getOutputStream().write("dump".getBytes(StandardCharsets.US_ASCII));
            return new String(socket.getInputStream().readAllBytes(), StandardCharsets.US_ASCII);
        } catch (IOException error) {
            return "";
        }
    }

    /** Replaces the end of the JVM by the formatting tool. */
    private static final class Ended extends RuntimeException {
        private static final long serialVersionUID = 1L;
        final int status;

        Ended(int status) {
            this.status = status;
        }
    }
}
