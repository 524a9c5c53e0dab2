import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.Random;
import java.util.TreeSet;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Writes numbered records to the active member of a pair until SIGTERM, as an application that keeps its outbox would.
 *
 * <p>Options: endpoint=FILE (has the alias of the active member) clients=FOLDER (has ALIAS.producer.properties) out=FILE
 * name= topic= keys=20 rate=100 (records a second) transactional_id= transaction_records=20 abort_percent=0 seed=1
 *
 * <p>After a refusal, and when the endpoint has another alias, it closes the producer, reads the endpoint again, and first
 * repeats the numbers that were not acknowledged. A cluster that is lost refuses nothing; what was sent to it is unknown then. Each try to write a number is an attempt of its own. A record has the key "k" and number modulo keys, and the
 * value "name attempt number padding". Lines of out, each after its time in ms: "session MEMBER", "sent ATTEMPT NUMBER",
 * "acknowledged ATTEMPT PARTITION OFFSET", "aborted ATTEMPT" (can never be read), "unknown ATTEMPT" (may be in the log), "refused ERROR".
 */
public final class PairProducer {
    private static final long PAUSE_NANOS = 200_000_000L;
    private static final long CHECK_NANOS = 10_000_000L;
    private static final Duration CLOSE = Duration.ofSeconds(5);

    private final Options options;
    private final PairEndpoint endpoint;
    private final PrintStream out;
    private final Random random;
    private final TreeSet<Long> outbox = new TreeSet<>();
    private final AtomicInteger unanswered = new AtomicInteger();
    private long nextNumber;
    private long nextAttempt;
    private volatile boolean stopping;
    private volatile boolean refused;

    private PairProducer(Options options) throws Exception {
        this.options = options;
        this.endpoint = new PairEndpoint(options);
        this.out = new PrintStream(Files.newOutputStream(Path.of(options.text("out"))), true, StandardCharsets.UTF_8);
        this.random = new Random(options.number("seed", 1));
    }

    public static void main(String[] arguments) throws Exception {
        PairProducer application = new PairProducer(new Options(arguments));
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
            application.session();
            LockSupport.parkNanos(PAUSE_NANOS);
        }
    }

    private void session() throws Exception {
        String member = endpoint.follow();
        Properties client = endpoint.client("producer");
        String id = options.text("transactional_id", "");
        if (!id.isEmpty()) {
            client.setProperty("transactional.id", id);
        }
        refused = false;
        print("session " + member);
        var text = new StringSerializer();
        KafkaProducer<String, String> producer = new KafkaProducer<>(client, text, text);
        try {
            if (id.isEmpty()) {
                while (!stopping && !refused && !endpoint.isMoved()) {
                    send(producer, takeNumber(), null);
                    pause(1);
                }
            } else {
                producer.initTransactions();
                while (!stopping && !refused && !endpoint.isMoved()) {
                    transaction(producer);
                }
            }
        } catch (KafkaException error) {
            refuse(error);
        } finally {
            awaitAnswers();
            producer.close(endpoint.isMoved() ? Duration.ZERO : CLOSE);
        }
    }

    /** Waits until each record that was sent is acknowledged or refused, or the endpoint has another alias. */
    private void awaitAnswers() {
        while (unanswered.get() > 0 && !endpoint.isMoved()) {
            LockSupport.parkNanos(CHECK_NANOS);
        }
    }

    private synchronized long takeNumber() {
        Long oldest = outbox.pollFirst();
        return oldest == null ? nextNumber++ : oldest;
    }

    private void pause(int records) {
        LockSupport.parkNanos(records * 1_000_000_000L / options.number("rate", 100));
    }

    /** Sends one record. Without *written* it is acknowledged at once; else it is added there. */
    private void send(KafkaProducer<String, String> producer, long number, List<Attempt> written) {
        Attempt attempt = new Attempt(nextAttempt++, number);
        print("sent " + attempt.id + " " + number);
        String key = "k" + number % options.number("keys", 20);
        String value = options.text("name") + " " + attempt.id + " " + number + " " + "-".repeat(random.nextInt(200));
        if (written != null) {
            written.add(attempt);
        }
        unanswered.incrementAndGet();
        try {
            producer.send(new ProducerRecord<>(options.text("topic"), key, value), (metadata, error) -> {
                unanswered.decrementAndGet();
                if (error != null) {
                    refuse(error);
                    if (written == null) {
                        lost(attempt, "unknown");
                    }
                    return;
                }
                attempt.place = metadata.partition() + " " + metadata.offset();
                if (written == null) {
                    print("acknowledged " + attempt.id + " " + attempt.place);
                }
            });
        } catch (KafkaException error) {
            // The callback is not called where send() itself fails.
            unanswered.decrementAndGet();
            if (written == null) {
                lost(attempt, "unknown");
            }
            throw error;
        }
    }

    private void transaction(KafkaProducer<String, String> producer) {
        List<Attempt> written = new ArrayList<>();
        String outcome = "aborted"; // by the coordinator, if nothing else decides it
        try {
            producer.beginTransaction();
            long records = 1 + random.nextInt((int) options.number("transaction_records", 20));
            for (long i = 0; i < records && !refused && !endpoint.isMoved(); i++) {
                send(producer, takeNumber(), written);
                pause(1);
            }
            if (endpoint.isMoved()) {
                return;
            }
            if (random.nextInt(100) < options.number("abort_percent", 0)) {
                awaitAnswers(); // an abort drops unsent records, but aborted records must be in the log
                producer.abortTransaction();
                return;
            }
            outcome = "unknown";
            outcome = commit(producer) ? "acknowledged" : "aborted";
        } catch (KafkaException error) {
            refuse(error);
        } finally {
            for (Attempt attempt : written) {
                if (outcome.equals("acknowledged")) {
                    print("acknowledged " + attempt.id + " " + attempt.place);
                } else {
                    lost(attempt, outcome);
                }
            }
        }
    }

    /** Returns whether the transaction was committed; false: it was aborted. Throws where that is not known. */
    private boolean commit(KafkaProducer<String, String> producer) {
        while (true) {
            try {
                producer.commitTransaction();
                return true;
            } catch (TimeoutException error) {
                if (endpoint.isMoved()) {
                    throw error;
                }
                continue; // the only one after which a commit may be repeated
            } catch (KafkaException error) {
                refuse(error);
            }
            while (true) {
                try {
                    producer.abortTransaction();
                    return false;
                } catch (TimeoutException error) {
                    if (endpoint.isMoved()) {
                        throw error;
                    }
                }
            }
        }
    }

    private synchronized void lost(Attempt attempt, String outcome) {
        outbox.add(attempt.number);
        print(outcome + " " + attempt.id);
    }

    private void refuse(Exception error) {
        if (!refused) {
            refused = true;
            print("refused " + error.getClass().getSimpleName());
        }
    }

    private synchronized void print(String line) {
        out.println(System.currentTimeMillis() + " " + line);
    }

    /** One try to write a number; *place* is its partition and offset when the leader has it. */
    private static final class Attempt {
        private final long id;
        private final long number;
        private volatile String place;

        Attempt(long id, long number) {
            this.id = id;
            this.number = number;
        }
    }
}
