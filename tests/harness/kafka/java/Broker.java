import java.nio.file.Files;
import java.nio.file.Path;
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
    private Broker() {}

    public static void main(String[] arguments) throws Exception {
        Path server = Path.of(arguments[0]);
        Properties settings = new Properties();
        try (var reader = Files.newBufferedReader(server)) {
            settings.load(reader);
        }
        if (settings.containsKey("zookeeper.connect")) {
            startZooKeeper(server.resolveSibling("zookeeper.properties"));
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

    /** Replaces the end of the JVM by the formatting tool. */
    private static final class Ended extends RuntimeException {
        private static final long serialVersionUID = 1L;
        final int status;

        Ended(int status) {
            this.status = status;
        }
    }
}
