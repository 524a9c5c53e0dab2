import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Measures the latency that a copy adds to a record: the time at which a consumer of the target has it, minus the time at
 * which a consumer of the source has it. Both consumers are in this process and use the same clock.
 *
 * <p>Usage: Probe SOURCE.properties SOURCE_TOPIC TARGET.properties TARGET_TOPIC FIRST RECORDS SKIPPED TIMEOUT_S
 *
 * <p>Counts the records whose value begins with FIRST .. FIRST + RECORDS - 1 as eight bytes (as Load writes them), without
 * the first SKIPPED, during which the compilers warm up. Prints "ready" when both consumers wait at the end, and at the
 * end one JSON line in milliseconds.
 */
public final class Probe {
    private static final Duration POLL = Duration.ofMillis(200);

    private final long first;
    private final int records;
    private final long deadline;
    private final CountDownLatch ready = new CountDownLatch(2);
    private final AtomicReference<Throwable> failure = new AtomicReference<>();

    private Probe(long first, int records, long timeoutSeconds) {
        this.first = first;
        this.records = records;
        this.deadline = System.nanoTime() + timeoutSeconds * 1_000_000_000L;
    }

    public static void main(String[] arguments) throws Exception {
        int records = Integer.parseInt(arguments[5]);
        int skipped = Integer.parseInt(arguments[6]);
        Probe probe = new Probe(Long.parseLong(arguments[4]), records, Long.parseLong(arguments[7]));
        long[] source = new long[records];
        long[] target = new long[records];
        List<Thread> readers = List.of(
                probe.reader(arguments[0], arguments[1], source), probe.reader(arguments[2], arguments[3], target));
        probe.ready.await();
        System.out.println("ready");
        System.out.flush();
        for (Thread reader : readers) {
            reader.join();
        }
        if (probe.failure.get() != null) {
            throw new IllegalStateException(probe.failure.get());
        }
        double[] added = new double[records - skipped];
        for (int i = skipped; i < records; i++) {
            added[i - skipped] = (target[i] - source[i]) / 1e6;
        }
        Arrays.sort(added);
        System.out.printf(
                Locale.ROOT,
                "{\"records\": %d, \"p50\": %.3f, \"p90\": %.3f, \"p99\": %.3f, \"p999\": %.3f, \"max\": %.3f}%n",
                added.length,
                added[added.length / 2],
                added[(int) (added.length * 0.9)],
                added[(int) (added.length * 0.99)],
                added[(int) (added.length * 0.999)],
                added[added.length - 1]);
    }

    private Thread reader(String file, String topic, long[] seen) {
        Thread thread = new Thread(() -> {
            try {
                read(file, topic, seen);
            } catch (Throwable error) {
                failure.compareAndSet(null, error);
                ready.countDown();
                ready.countDown();
            }
        });
        thread.start();
        return thread;
    }

    private void read(String file, String topic, long[] seen) throws Exception {
        Properties client = new Properties();
        try (var reader = Files.newBufferedReader(Path.of(file))) {
            client.load(reader);
        }
        client.putIfAbsent("enable.auto.commit", "false");
        client.putIfAbsent("max.poll.records", "5000");
        var bytes = new ByteArrayDeserializer();
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(client, bytes, bytes)) {
            List<TopicPartition> partitions = consumer.partitionsFor(topic).stream()
                    .map(info -> new TopicPartition(topic, info.partition()))
                    .toList();
            consumer.assign(partitions);
            consumer.seekToEnd(partitions);
            partitions.forEach(consumer::position);
            ready.countDown();
            for (int left = records; left > 0; ) {
                var polled = consumer.poll(POLL);
                long now = System.nanoTime();
                for (ConsumerRecord<byte[], byte[]> record : polled) {
                    long number = ByteBuffer.wrap(record.value()).getLong() - first;
                    if (number >= 0 && number < records && seen[(int) number] == 0) {
                        seen[(int) number] = now;
                        left--;
                    }
                }
                if (now > deadline) {
                    throw new IllegalStateException(topic + ": " + left + " records have not come in time");
                }
                if (failure.get() != null) {
                    return;
                }
            }
        }
    }
}
