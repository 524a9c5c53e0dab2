import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Reads a topic as the only member of a share group until it has acknowledged a number of records, and leaves.
 *
 * <p>Options: client=FILE group= topic= count=RECORDS skip=OFFSETS (separated by commas: these are released, not acknowledged)
 * reset=earliest|latest (sets share.auto.offset.reset of the group). Prints "PARTITION OFFSET" for each acknowledged record.
 */
public final class ShareReader {
    private static final Duration POLL = Duration.ofMillis(200);
    private static final Duration PATIENCE = Duration.ofSeconds(60);

    private ShareReader() {}

    public static void main(String[] arguments) throws Exception {
        Options options = new Options(arguments);
        String group = options.text("group");
        String reset = options.text("reset", "");
        if (!reset.isEmpty()) {
            try (Admin admin = Admin.create(options.client())) {
                var entry = new AlterConfigOp(new ConfigEntry("share.auto.offset.reset", reset), AlterConfigOp.OpType.SET);
                var resource = new ConfigResource(ConfigResource.Type.GROUP, group);
                admin.incrementalAlterConfigs(Map.of(resource, List.of(entry))).all().get();
            }
        }
        Properties client = options.client();
        client.put(ConsumerConfig.GROUP_ID_CONFIG, group);
        client.put("share.acknowledgement.mode", "explicit");
        // A broker stores a start offset with the acknowledgement that follows its move, so there must be several.
        client.put("share.acquire.mode", "record_limit");
        client.put(ConsumerConfig.MAX_POLL_RECORDS_CONFIG, 10);
        var bytes = new ByteArrayDeserializer();
        try (var member = new KafkaShareConsumer<>(client, bytes, bytes)) {
            member.subscribe(List.of(options.text("topic")));
            read(member, options.number("count", 1), List.of(options.text("skip", "").split(",")));
        }
        System.out.flush();
    }

    private static void read(KafkaShareConsumer<byte[], byte[]> member, long count, List<String> skipped) {
        long giveUp = System.nanoTime() + PATIENCE.toNanos();
        List<String> lines = new ArrayList<>();
        while (lines.size() < count) {
            if (System.nanoTime() > giveUp) {
                throw new IllegalStateException("only " + lines.size() + " records were delivered");
            }
            for (ConsumerRecord<byte[], byte[]> record : member.poll(POLL)) {
                boolean isTaken = lines.size() < count && !skipped.contains(Long.toString(record.offset()));
                member.acknowledge(record, isTaken ? AcknowledgeType.ACCEPT : AcknowledgeType.RELEASE);
                if (isTaken) {
                    lines.add(record.partition() + " " + record.offset());
                }
            }
            member.commitSync();
        }
        lines.forEach(System.out::println);
    }
}
