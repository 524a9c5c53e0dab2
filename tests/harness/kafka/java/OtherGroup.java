import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.UUID;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.GroupListing;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.consumer.internals.AsyncKafkaConsumer;
import org.apache.kafka.clients.consumer.internals.StreamsRebalanceData;
import org.apache.kafka.clients.consumer.internals.StreamsRebalanceListener;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Creates a group that is not a consumer group: a member joins, and leaves once the cluster lists the group.
 *
 * <p>Options: client=FILE kind=share|streams group= topic=. Prints the group's type as the cluster reports it.
 */
public final class OtherGroup {
    private static final Duration POLL = Duration.ofMillis(100);
    private static final Duration PATIENCE = Duration.ofSeconds(60);

    private OtherGroup() {}

    public static void main(String[] arguments) throws Exception {
        Options options = new Options(arguments);
        Properties client = options.client();
        client.put(ConsumerConfig.GROUP_ID_CONFIG, options.text("group"));
        List<String> topics = List.of(options.text("topic"));
        try (Admin admin = Admin.create(options.client())) {
            switch (options.text("kind")) {
                case "share" -> share(client, topics, admin, options.text("group"));
                case "streams" -> streams(client, topics, admin, options.text("group"));
                default -> throw new IllegalArgumentException(options.text("kind"));
            }
        }
        System.out.flush();
    }

    private static void share(Properties client, List<String> topics, Admin admin, String group) throws Exception {
        var bytes = new ByteArrayDeserializer();
        try (var member = new KafkaShareConsumer<>(client, bytes, bytes)) {
            member.subscribe(topics);
            untilListed(() -> member.poll(POLL), admin, group);
        }
    }

    /** Joins like Kafka Streams with its own protocol (KIP-1071): one subtopology that reads the topics. */
    private static void streams(Properties client, List<String> topics, Admin admin, String group) throws Exception {
        var bytes = new ByteArrayDeserializer();
        client.put(ConsumerConfig.GROUP_PROTOCOL_CONFIG, "consumer");
        client.put(ConsumerConfig.KEY_DESERIALIZER_CLASS_CONFIG, ByteArrayDeserializer.class);
        client.put(ConsumerConfig.VALUE_DESERIALIZER_CLASS_CONFIG, ByteArrayDeserializer.class);
        var topology = Map.of(
                "0",
                new StreamsRebalanceData.Subtopology(Set.copyOf(topics), Set.of(), Map.of(), Map.of(), List.of()));
        var data = new StreamsRebalanceData(UUID.randomUUID(), Optional.empty(), Optional.empty(), topology, Map.of());
        var config = new ConsumerConfig(client);
        try (var member = new AsyncKafkaConsumer<>(config, bytes, bytes, Optional.of(data))) {
            member.subscribe(topics, new Deaf(data));
            untilListed(() -> member.poll(POLL), admin, group);
        }
    }

    private static void untilListed(Runnable poll, Admin admin, String group) throws Exception {
        long giveUp = System.nanoTime() + PATIENCE.toNanos();
        while (System.nanoTime() < giveUp) {
            poll.run();
            for (GroupListing one : admin.listGroups().all().get()) {
                if (one.groupId().equals(group)) {
                    System.out.println(one.type().map(Object::toString).orElse(""));
                    return;
                }
            }
        }
        throw new IllegalStateException("the cluster lists no group " + group);
    }

    /** Accepts its tasks and does nothing with them. */
    private static final class Deaf implements StreamsRebalanceListener {
        private final StreamsRebalanceData data;

        Deaf(StreamsRebalanceData data) {
            this.data = data;
        }

        @Override
        public void onTasksRevoked(Set<StreamsRebalanceData.TaskId> tasks) {}

        @Override
        public void onTasksAssigned(StreamsRebalanceData.Assignment assignment) {
            data.setReconciledAssignment(assignment);
        }

        @Override
        public void onAllTasksLost() {}
    }
}
