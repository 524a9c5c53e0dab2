import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Locale;
import java.util.Properties;
import java.util.Random;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Writes records with a Java producer, and prints one JSON line with the result.
 *
 * <p>Options: client=FILE topic= records= size=100 first=0 partition=-1 (all in turn) keys=false headers=0
 * null_every=0 content=text|random seed=1 timestamp_ms=-1 (now) timestamp_step_ms=0 rate=0 (records a second)
 * transactional_id= transaction_records=100 abort_every=0 leave_open=false
 *
 * <p>Record i has the key "i". A value of at least eight bytes begins with i as eight bytes.
 */
public final class Load {
    /** The number of different values: no batch and no codec's window has one twice; fewer if they are large. */
    private static final int VARIANTS_MAX = 8192;
    private static final int VARIANTS_MIN = 16;
    private static final int VARIANTS_BYTES = 8 << 20;

    private final Options options;
    private final long records;
    private final int partitions;
    private byte[][] contents;
    private final AtomicReference<Exception> failure = new AtomicReference<>();
    private long aborted;

    private Load(Options options, int partitions) {
        this.options = options;
        this.partitions = partitions;
        this.records = options.number("records", 1);
        fill((int) options.number("size", 100));
    }

    public static void main(String[] arguments) throws Exception {
        Options options = new Options(arguments);
        Properties client = options.client();
        String id = options.text("transactional_id", "");
        if (!id.isEmpty()) {
            client.setProperty("transactional.id", id);
        }
        var bytes = new ByteArraySerializer();
        KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(client, bytes, bytes);
        try {
            Load load = new Load(options, producer.partitionsFor(options.text("topic")).size());
            load.run(producer, !id.isEmpty());
            if (options.flag("leave_open")) {
                Runtime.getRuntime().halt(0); // closing the producer would abort the transaction that shall stay open
            }
        } finally {
            producer.close();
        }
    }

    private void run(KafkaProducer<byte[], byte[]> producer, boolean transactional) throws Exception {
        long begin = System.nanoTime();
        if (transactional) {
            transactions(producer);
        } else {
            send(producer, 0, records);
            producer.flush();
        }
        double seconds = (System.nanoTime() - begin) / 1e9;
        if (failure.get() != null) {
            throw failure.get();
        }
        System.out.printf(
                Locale.ROOT,
                "{\"records\": %d, \"aborted\": %d, \"seconds\": %.3f, \"megabytes_per_s\": %.1f}%n",
                records,
                aborted,
                seconds,
                records * (double) contents[0].length / 1e6 / seconds);
        System.out.flush();
    }

    private void fill(int size) {
        Random random = new Random(options.number("seed", 1));
        int variants = Math.max(VARIANTS_MIN, Math.min(VARIANTS_MAX, VARIANTS_BYTES / Math.max(size, 1)));
        contents = new byte[variants][];
        boolean compressible = options.text("content", "text").equals("text");
        for (int variant = 0; variant < variants; variant++) {
            if (compressible) {
                StringBuilder text = new StringBuilder(size + 80);
                while (text.length() < size) {
                    text.append("{\"order\":").append(random.nextInt(1_000_000_000));
                    text.append(",\"customer\":\"c-").append(random.nextInt(100_000));
                    text.append("\",\"state\":\"shipped\",\"amount\":").append(random.nextInt(10_000)).append("}");
                }
                contents[variant] = text.substring(0, size).getBytes(StandardCharsets.US_ASCII);
            } else {
                contents[variant] = new byte[size];
                random.nextBytes(contents[variant]);
            }
        }
    }

    private void transactions(KafkaProducer<byte[], byte[]> producer) {
        long each = options.number("transaction_records", 100);
        long abortEvery = options.number("abort_every", 0);
        producer.initTransactions();
        long number = 1;
        for (long begin = 0; begin < records; begin += each, number++) {
            long end = Math.min(begin + each, records);
            producer.beginTransaction();
            send(producer, begin, end);
            producer.flush(); // an abort drops unsent records, but aborted records must be in the log
            if (end == records && options.flag("leave_open")) {
                return;
            }
            if (abortEvery > 0 && number % abortEvery == 0) {
                producer.abortTransaction();
                aborted += end - begin;
            } else {
                producer.commitTransaction();
            }
        }
    }

    private void send(KafkaProducer<byte[], byte[]> producer, long begin, long end) {
        String topic = options.text("topic");
        long first = options.number("first", 0);
        int fixed = (int) options.number("partition", -1);
        boolean keys = options.flag("keys");
        int headers = (int) options.number("headers", 0);
        long nullEvery = options.number("null_every", 0);
        long timestamp = options.number("timestamp_ms", -1);
        long step = options.number("timestamp_step_ms", 0);
        long rate = options.number("rate", 0);
        long started = System.nanoTime();
        for (long i = begin; i < end && failure.get() == null; i++) {
            long sequence = first + i;
            int partition = fixed >= 0 ? fixed : (int) (sequence % partitions);
            Long time = timestamp < 0 ? null : (Long) (timestamp + step * i);
            byte[] key = keys ? Long.toString(sequence).getBytes(StandardCharsets.US_ASCII) : null;
            boolean isNull = nullEvery > 0 && (i + 1) % nullEvery == 0;
            byte[] value = isNull ? null : value(sequence);
            producer.send(
                    new ProducerRecord<>(topic, partition, time, key, value, headers(headers, sequence)),
                    (metadata, error) -> {
                        if (error != null) {
                            failure.compareAndSet(null, error);
                        }
                    });
            if (rate > 0) {
                java.util.concurrent.locks.LockSupport.parkNanos(
                        started + (i - begin + 1) * 1_000_000_000L / rate - System.nanoTime());
            }
        }
    }

    private byte[] value(long sequence) {
        // send() copies the value, so one array for each variant is enough.
        byte[] content = contents[(int) (sequence % contents.length)];
        if (content.length >= Long.BYTES) {
            ByteBuffer.wrap(content).putLong(sequence);
        }
        return content;
    }

    /** With two or more headers, "h0" occurs twice (names may repeat); every third value is null. */
    private static RecordHeaders headers(int count, long sequence) {
        RecordHeaders headers = new RecordHeaders();
        for (int i = 0; i < count; i++) {
            byte[] value = i % 3 == 2 ? null : Long.toString(sequence + i).getBytes(StandardCharsets.US_ASCII);
            headers.add("h" + i / 2, value);
        }
        return headers;
    }
}
