import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.connect.mirror.RemoteClusterUtils;

/**
 * Translates the offsets of a group from a different cluster to this one, as Java reads the checkpoints topic.
 *
 * <p>Options: client=FILE alias= group= timeout_ms=; the client's file may have replication.policy.*
 *
 * <p>Prints a JSON line for each partition.
 */
public final class TranslateOffsets {
    private TranslateOffsets() {}

    public static void main(String[] arguments) throws Exception {
        Options options = new Options(arguments);
        Map<String, Object> client = new HashMap<>();
        options.client().forEach((name, value) -> client.put(name.toString(), value));
        Map<TopicPartition, OffsetAndMetadata> offsets = RemoteClusterUtils.translateOffsets(
                client,
                options.text("alias"),
                options.text("group"),
                Duration.ofMillis(options.number("timeout_ms", 30_000)));
        for (var entry : offsets.entrySet()) {
            System.out.printf(
                    "{\"topic\": \"%s\", \"partition\": %d, \"offset\": %d, \"metadata\": \"%s\"}%n",
                    entry.getKey().topic(),
                    entry.getKey().partition(),
                    entry.getValue().offset(),
                    entry.getValue().metadata());
        }
        System.out.flush();
    }
}
