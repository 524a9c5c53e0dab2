package conformance;

import com.fasterxml.jackson.databind.DeserializationFeature;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.connect.errors.NotFoundException;
import org.apache.kafka.connect.runtime.rest.entities.ConnectorStateInfo;
import org.apache.kafka.connect.runtime.rest.entities.TaskInfo;
import org.apache.kafka.connect.util.ConnectorTaskId;

/**
 * What a Connect cluster says about itself in its status and config topics.
 *
 * <p>Any implementation that keeps Connect's formats can be asked in this way, without REST:
 * <pre>
 *   status topic  status-connector-NAME  {"state","trace","worker_id","generation",...}
 *                 status-task-NAME-N     the same
 *   config topic  connector-NAME         {"properties":{...}}
 *                 task-NAME-N            {"properties":{...}}, valid from the next commit-NAME on
 *                 commit-NAME            {"tasks":N}
 * </pre>
 * A record without a value deletes the entry.
 */
public final class ConnectTopics implements AutoCloseable {

    private static final ObjectMapper JSON = new ObjectMapper()
        .configure(DeserializationFeature.FAIL_ON_UNKNOWN_PROPERTIES, false);

    private final String statusTopic;
    private final String configTopic;
    private final Consumer<String, byte[]> consumer;
    private final Map<String, JsonNode> status = new HashMap<>();
    private final Map<String, JsonNode> configs = new HashMap<>();        // connector-NAME
    private final Map<String, Map<Integer, JsonNode>> uncommitted = new HashMap<>();
    private final Map<String, Map<Integer, JsonNode>> tasks = new HashMap<>();

    /** @param worker the worker's properties: topics, bootstrap servers and any security settings */
    public ConnectTopics(Map<String, String> worker) {
        statusTopic = worker.get("status.storage.topic");
        configTopic = worker.get("config.storage.topic");
        Map<String, Object> client = new HashMap<>();
        for (String key : ConsumerConfig.configNames())
            if (worker.containsKey(key)) client.put(key, worker.get(key));
        client.remove(ConsumerConfig.GROUP_ID_CONFIG);
        client.remove(ConsumerConfig.CLIENT_ID_CONFIG);
        client.put(ConsumerConfig.ENABLE_AUTO_COMMIT_CONFIG, "false");
        client.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
        client.put(ConsumerConfig.ALLOW_AUTO_CREATE_TOPICS_CONFIG, "false");
        client.put(ConsumerConfig.ISOLATION_LEVEL_CONFIG, "read_committed"); // exactly-once writes transactions
        client.put(ConsumerConfig.METADATA_MAX_AGE_CONFIG, "1000");
        consumer = new KafkaConsumer<>(client, new StringDeserializer(), new ByteArrayDeserializer());
    }

    /** The same answer as Herder.connectorStatus. */
    public synchronized ConnectorStateInfo connectorStatus(String connector) {
        refresh();
        JsonNode own = status.get("status-connector-" + connector);
        if (!present(own)) throw new NotFoundException("No status found for connector " + connector);
        ObjectNode answer = JSON.createObjectNode().put("name", connector)
            .put("type", configs.containsKey(connector) ? "source" : "unknown");
        answer.set("connector", own);
        TreeMap<Integer, JsonNode> sorted = new TreeMap<>();
        status.forEach((key, value) -> {
            if (key.startsWith("status-task-") && present(value)) {
                int dash = key.lastIndexOf('-');
                if (key.substring(0, dash).equals("status-task-" + connector))
                    sorted.put(Integer.parseInt(key.substring(dash + 1)), value);
            }
        });
        ArrayNode list = answer.putArray("tasks");
        sorted.forEach((id, value) -> list.add(((ObjectNode) value.deepCopy()).put("id", id)));
        return JSON.convertValue(answer, ConnectorStateInfo.class); // as the REST client does
    }

    /** The same answer as Herder.taskConfigs. */
    public synchronized List<TaskInfo> taskConfigs(String connector) {
        refresh();
        if (!configs.containsKey(connector)) throw new NotFoundException("Connector " + connector + " not found");
        List<TaskInfo> answer = new ArrayList<>();
        new TreeMap<>(tasks.getOrDefault(connector, Map.of())).forEach((id, value) -> {
            Map<String, String> properties = new HashMap<>();
            value.path("properties").properties().forEach(p -> properties.put(p.getKey(), p.getValue().asText()));
            answer.add(new TaskInfo(new ConnectorTaskId(connector, id), properties));
        });
        return answer;
    }

    private static boolean present(JsonNode status) {
        return status != null && !status.path("state").asText().equals("DESTROYED");
    }

    /** Reads both topics up to their present end. */
    private void refresh() {
        List<TopicPartition> partitions = new ArrayList<>();
        for (String topic : List.of(statusTopic, configTopic)) {
            List<PartitionInfo> found = consumer.partitionsFor(topic); // none as long as the topic does not exist
            if (found != null) found.forEach(p -> partitions.add(new TopicPartition(topic, p.partition())));
        }
        if (!consumer.assignment().containsAll(partitions)) {
            consumer.assign(partitions);
            status.clear();
            configs.clear();
            tasks.clear();
            uncommitted.clear();
            consumer.seekToBeginning(partitions);
        }
        Map<TopicPartition, Long> ends = consumer.endOffsets(consumer.assignment());
        long deadline = System.nanoTime() + Duration.ofSeconds(30).toNanos();
        while (ends.entrySet().stream().anyMatch(end -> consumer.position(end.getKey()) < end.getValue())) {
            if (System.nanoTime() > deadline) throw new IllegalStateException("cannot read " + ends);
            for (ConsumerRecord<String, byte[]> r : consumer.poll(Duration.ofMillis(100))) apply(r);
        }
    }

    private void apply(ConsumerRecord<String, byte[]> record) {
        JsonNode value = null;
        try {
            if (record.value() != null) value = JSON.readTree(record.value());
        } catch (IOException e) {
            throw new IllegalStateException("not JSON: " + record.topic() + " " + record.key(), e);
        }
        String key = record.key();
        if (value != null && value.isNull()) value = null;
        if (record.topic().equals(statusTopic)) {
            put(status, key, value);
        } else if (key.startsWith("connector-")) {
            put(configs, key.substring("connector-".length()), value);
        } else if (key.startsWith("task-")) {
            int dash = key.lastIndexOf('-');
            put(uncommitted.computeIfAbsent(key.substring("task-".length(), dash), k -> new HashMap<>()),
                Integer.parseInt(key.substring(dash + 1)), value);
        } else if (key.startsWith("commit-")) {
            String connector = key.substring("commit-".length());
            Map<Integer, JsonNode> all = tasks.computeIfAbsent(connector, k -> new HashMap<>());
            Map<Integer, JsonNode> fresh = uncommitted.remove(connector);
            if (fresh != null) all.putAll(fresh);
            int count = value == null ? 0 : value.path("tasks").asInt();
            all.keySet().removeIf(id -> id >= count);
        }
    }

    private static <K> void put(Map<K, JsonNode> map, K key, JsonNode value) {
        if (value == null) map.remove(key);
        else map.put(key, value);
    }

    @Override
    public synchronized void close() {
        consumer.close();
    }
}
