import java.io.BufferedOutputStream;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.time.Duration;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Reads a topic with a Java consumer from its beginning to its end at the start of this program.
 *
 * <p>Options: client=FILE topic= mode=records|digest payload=hex|sha256 isolation=read_uncommitted
 *
 * <p>mode=records prints a JSON line for each record. mode=digest prints a line for each partition: the number of records,
 * and a SHA-256 over key, value, headers and timestamp of each record in order. Offsets and the timestamp's type are
 * excluded, because they may differ between a topic and its copy.
 */
public final class Dump {
    private static final Duration POLL = Duration.ofMillis(200);
    private static final long SILENCE_MAX_NANOS = 30_000_000_000L;
    private static final HexFormat HEX = HexFormat.of();

    private final boolean digests;
    private final boolean sums;
    private final PrintStream out = new PrintStream(new BufferedOutputStream(System.out, 1 << 20), false);
    private final Map<Integer, MessageDigest> digest = new TreeMap<>();
    private final Map<Integer, Long> counts = new HashMap<>();

    private Dump(Options options) {
        digests = options.text("mode", "records").equals("digest");
        sums = options.text("payload", "hex").equals("sha256");
    }

    public static void main(String[] arguments) throws Exception {
        Options options = new Options(arguments);
        Properties client = options.client();
        client.putIfAbsent("isolation.level", options.text("isolation", "read_uncommitted"));
        client.putIfAbsent("enable.auto.commit", "false");
        client.putIfAbsent("max.poll.records", "10000");
        client.putIfAbsent("max.partition.fetch.bytes", "8388608");
        client.putIfAbsent("fetch.max.wait.ms", "50");
        var bytes = new ByteArrayDeserializer();
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(client, bytes, bytes)) {
            new Dump(options).read(consumer, options.text("topic"));
        }
    }

    private void read(KafkaConsumer<byte[], byte[]> consumer, String topic) throws Exception {
        List<TopicPartition> partitions = consumer.partitionsFor(topic).stream()
                .map(info -> new TopicPartition(topic, info.partition()))
                .toList();
        Map<TopicPartition, Long> open = new HashMap<>(consumer.endOffsets(partitions));
        for (TopicPartition partition : partitions) {
            digest.put(partition.partition(), MessageDigest.getInstance("SHA-256"));
        }
        consumer.assign(partitions);
        consumer.seekToBeginning(partitions);
        open.entrySet().removeIf(entry -> consumer.position(entry.getKey()) >= entry.getValue());
        long heard = System.nanoTime();
        while (!open.isEmpty()) {
            int before = open.size();
            var records = consumer.poll(POLL);
            for (ConsumerRecord<byte[], byte[]> record : records) {
                Long end = open.get(new TopicPartition(topic, record.partition()));
                if (end != null && record.offset() < end) {
                    take(record);
                }
            }
            open.entrySet().removeIf(entry -> consumer.position(entry.getKey()) >= entry.getValue());
            if (!records.isEmpty() || open.size() < before) {
                heard = System.nanoTime();
            } else if (System.nanoTime() - heard > SILENCE_MAX_NANOS) {
                throw new IllegalStateException("nothing came for 30 s; not read to the end: " + open);
            }
        }
        for (var entry : digest.entrySet()) {
            if (digests) {
                out.printf(
                        "{\"partition\": %d, \"count\": %d, \"sha256\": \"%s\"}%n",
                        entry.getKey(),
                        counts.getOrDefault(entry.getKey(), 0L),
                        HEX.formatHex(entry.getValue().digest()));
            }
        }
        out.flush();
    }

    private void take(ConsumerRecord<byte[], byte[]> record) throws Exception {
        counts.merge(record.partition(), 1L, Long::sum);
        if (digests) {
            add(digest.get(record.partition()), record);
        } else {
            print(record);
        }
    }

    private static void add(MessageDigest digest, ConsumerRecord<byte[], byte[]> record) {
        digest.update(ByteBuffer.allocate(12).putLong(record.timestamp()).putInt(record.headers().toArray().length).array());
        add(digest, record.key());
        add(digest, record.value());
        for (Header header : record.headers()) {
            add(digest, header.key().getBytes(StandardCharsets.UTF_8));
            add(digest, header.value());
        }
    }

    private static void add(MessageDigest digest, byte[] part) {
        digest.update(ByteBuffer.allocate(4).putInt(part == null ? -1 : part.length).array());
        if (part != null) {
            digest.update(part);
        }
    }

    private void print(ConsumerRecord<byte[], byte[]> record) throws Exception {
        StringBuilder headers = new StringBuilder();
        for (Header header : record.headers()) {
            headers.append(headers.length() == 0 ? "" : ", ")
                    .append("[\"")
                    .append(HEX.formatHex(header.key().getBytes(StandardCharsets.UTF_8)))
                    .append("\", ")
                    .append(payload(header.value()))
                    .append("]");
        }
        out.printf(
                "{\"partition\": %d, \"offset\": %d, \"timestamp\": %d, \"timestamp_type\": \"%s\","
                        + " \"key\": %s, \"value\": %s, \"headers\": [%s]}%n",
                record.partition(),
                record.offset(),
                record.timestamp(),
                record.timestampType().name,
                payload(record.key()),
                payload(record.value()),
                headers);
    }

    private String payload(byte[] part) throws Exception {
        if (part == null) {
            return "null";
        }
        return '"' + HEX.formatHex(sums ? MessageDigest.getInstance("SHA-256").digest(part) : part) + '"';
    }
}
