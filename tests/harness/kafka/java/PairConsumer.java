import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.locks.LockSupport;
import org.apache.kafka.clients.consumer.CloseOptions;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * Reads the active member of a pair as the only consumer of its group until SIGTERM, and commits what it has read. When the
 * endpoint has another alias, it drops what it has not committed and goes on there.
 *
 * <p>Options: endpoint=FILE (has the alias of the active member) hold=FILE (while it exists, the consumer is closed)
 * clients=FOLDER (has ALIAS.consumer.properties) out=FILE topic=
 *
 * <p>Lines of out, each after its time in ms: "session MEMBER", "assigned", "read PARTITION OFFSET KEY VALUE" once the record's offset is committed, "dropped COUNT"
 * for records whose offsets were not committed, which are read again, and "closed".
 */
public final class PairConsumer {
    private static final Duration POLL = Duration.ofMillis(100);
    private static final Duration CLOSE = Duration.ofSeconds(30);
    private static final long PAUSE_NANOS = 50_000_000L;

    private final Options options;
    private final PairEndpoint endpoint;
    private final PrintStream out;
    private volatile boolean stopping;

    private PairConsumer(Options options) throws Exception {
        this.options = options;
        this.endpoint = new PairEndpoint(options);
        this.out = new PrintStream(Files.newOutputStream(Path.of(options.text("out"))), true, StandardCharsets.UTF_8);
    }

    public static void main(String[] arguments) throws Exception {
        PairConsumer application = new PairConsumer(new Options(arguments));
        Thread main = Thread.currentThread();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            application.stopping = true;
            try {
                main.join();
            } catch (InterruptedException error) {
                Thread.currentThread().interrupt();
            }
        }));
        while (!application.stopping) {
            if (!application.isHeld()) {
                application.session();
            }
            LockSupport.parkNanos(PAUSE_NANOS);
        }
    }

    private void print(String line) {
        out.println(System.currentTimeMillis() + " " + line);
    }

    private boolean isHeld() {
        return Files.exists(Path.of(options.text("hold")));
    }

    private void session() throws Exception {
        String member = endpoint.follow();
        Properties client = endpoint.client("consumer");
        print("session " + member);
        var text = new StringDeserializer();
        boolean assigned = false;
        var consumer = new KafkaConsumer<>(client, text, text);
        try {
            consumer.subscribe(List.of(options.text("topic")));
            while (!stopping && !isHeld() && !endpoint.isMoved()) {
                ConsumerRecords<String, String> records = consumer.poll(POLL);
                if (!assigned && !consumer.assignment().isEmpty()) {
                    assigned = true;
                    print("assigned");
                }
                if (!records.isEmpty() && !commit(consumer, records)) {
                    print("dropped " + records.count());
                    break; // a new consumer begins at the committed offsets
                }
            }
        } catch (KafkaException error) {
            print("failed " + error.getClass().getSimpleName());
        }
        try {
            // A coordinator that is lost does not answer that the member has left.
            consumer.close(CloseOptions.timeout(endpoint.isMoved() ? Duration.ZERO : CLOSE));
        } catch (KafkaException error) {
            print("failed " + error.getClass().getSimpleName());
        }
        print("closed");
    }

    /** Commits the offsets after *records*, and prints the records then; returns false if the offsets were not committed. */
    private boolean commit(KafkaConsumer<String, String> consumer, ConsumerRecords<String, String> records) {
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        for (TopicPartition partition : records.partitions()) {
            offsets.put(partition, new OffsetAndMetadata(consumer.position(partition)));
        }
        boolean committed = false;
        while (!committed) {
            try {
                consumer.commitSync(offsets);
                committed = true;
            } catch (TimeoutException error) {
                if (endpoint.isMoved()) {
                    return false;
                }
            } catch (KafkaException error) {
                // The group has removed this member. An earlier try may have been written all the same: all partitions in one batch.
                print("refused " + error.getClass().getSimpleName());
                if (!isCommitted(consumer, offsets)) {
                    return false;
                }
                committed = true;
            }
        }
        StringBuilder lines = new StringBuilder();
        long now = System.currentTimeMillis();
        for (ConsumerRecord<String, String> record : records) {
            lines.append(now).append(" read ").append(record.partition()).append(' ').append(record.offset()).append(' ')
                    .append(record.key()).append(' ').append(record.value().stripTrailing()).append('\n');
        }
        out.print(lines);
        out.flush();
        return true;
    }

    private boolean isCommitted(
            KafkaConsumer<String, String> consumer, Map<TopicPartition, OffsetAndMetadata> offsets) {
        while (true) {
            try {
                var known = consumer.committed(offsets.keySet());
                return offsets.entrySet().stream().allMatch(entry -> {
                    OffsetAndMetadata at = known.get(entry.getKey());
                    return at != null && at.offset() >= entry.getValue().offset();
                });
            } catch (TimeoutException error) {
                if (endpoint.isMoved()) {
                    return false;
                }
            }
        }
    }
}
