import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeSet;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.connect.mirror.Heartbeat;
import org.apache.kafka.connect.mirror.MirrorClient;
import org.apache.kafka.connect.mirror.RemoteClusterUtils;

/**
 * Reads MM2's topics on a cluster with Java's own classes, and prints JSON, one value a line.
 *
 * <p>mode=clusters client=FILE aliases=A,B prints the view of MirrorClient and RemoteClusterUtils, with the hops to each alias.
 * mode=heartbeats client=FILE topic=T prints each record of partition 0 as Heartbeat reads it. mode=offsets client=FILE
 * source=A group=G prints RemoteClusterUtils.translateOffsets.
 */
public final class MirrorQuery {
    private static final Duration PATIENCE = Duration.ofSeconds(20);
    private static final PrintStream OUT = new PrintStream(System.out, false, StandardCharsets.UTF_8);

    private MirrorQuery() {}

    public static void main(String[] arguments) throws Exception {
        Options options = new Options(arguments);
        Map<String, Object> client = new HashMap<>();
        Properties file = options.client();
        file.stringPropertyNames().forEach(name -> client.put(name, file.getProperty(name)));
        switch (options.text("mode")) {
            case "clusters" -> clusters(client, List.of(options.text("aliases").split(",")));
            case "heartbeats" -> heartbeats(client, options.text("topic"));
            case "offsets" -> offsets(client, options.text("source"), options.text("group"));
            default -> throw new IllegalArgumentException(options.text("mode"));
        }
        OUT.flush();
    }

    private static void clusters(Map<String, Object> client, List<String> aliases) throws Exception {
        Map<String, Object> found = new HashMap<>();
        found.put("upstream_clusters", list(RemoteClusterUtils.upstreamClusters(client)));
        found.put("heartbeat_topics", list(RemoteClusterUtils.heartbeatTopics(client)));
        found.put("checkpoint_topics", list(RemoteClusterUtils.checkpointTopics(client)));
        try (MirrorClient mirror = new MirrorClient(client)) {
            found.put("remote_topics", list(mirror.remoteTopics()));
        }
        Map<String, Object> hops = new HashMap<>();
        for (String alias : aliases) {
            hops.put(alias, RemoteClusterUtils.replicationHops(client, alias));
        }
        found.put("hops", object(hops));
        OUT.println(object(found));
    }

    private static void heartbeats(Map<String, Object> client, String topic) {
        var bytes = new ByteArrayDeserializer();
        TopicPartition partition = new TopicPartition(topic, 0);
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(client, bytes, bytes)) {
            long end = consumer.endOffsets(List.of(partition)).get(partition);
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            long giveUp = System.nanoTime() + PATIENCE.toNanos();
            while (consumer.position(partition) < end && System.nanoTime() < giveUp) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
                    print(record);
                }
            }
        }
    }

    private static void print(ConsumerRecord<byte[], byte[]> record) {
        Heartbeat heartbeat = Heartbeat.deserializeRecord(record);
        Map<String, Object> line = new HashMap<>();
        line.put("source_alias", quoted(heartbeat.sourceClusterAlias()));
        line.put("target_alias", quoted(heartbeat.targetClusterAlias()));
        line.put("timestamp_ms", heartbeat.timestamp());
        line.put("record_timestamp_ms", record.timestamp());
        line.put("key", quoted(HexFormat.of().formatHex(record.key())));
        line.put("value", quoted(HexFormat.of().formatHex(record.value())));
        OUT.println(object(line));
    }

    private static void offsets(Map<String, Object> client, String source, String group) throws Exception {
        Map<TopicPartition, OffsetAndMetadata> found =
                RemoteClusterUtils.translateOffsets(client, source, group, PATIENCE);
        for (Map.Entry<TopicPartition, OffsetAndMetadata> entry : found.entrySet()) {
            Map<String, Object> line = new HashMap<>();
            line.put("topic", quoted(entry.getKey().topic()));
            line.put("partition", entry.getKey().partition());
            line.put("offset", entry.getValue().offset());
            line.put("metadata", quoted(entry.getValue().metadata()));
            OUT.println(object(line));
        }
    }

    private static String list(Collection<String> names) {
        return new TreeSet<>(names).stream().map(MirrorQuery::quoted).collect(Collectors.joining(",", "[", "]"));
    }

    /** The values are JSON. */
    private static String object(Map<String, Object> fields) {
        return fields.entrySet().stream()
                .map(field -> quoted(field.getKey()) + ":" + field.getValue())
                .collect(Collectors.joining(",", "{", "}"));
    }

    private static String quoted(String text) {
        return '"' + text.replace("\\", "\\\\").replace("\"", "\\\"") + '"';
    }
}
