package org.apache.kafka.connect.mirror;

import conformance.ConnectTopics;
import conformance.WorkerProcess;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.connect.runtime.rest.entities.ConnectorStateInfo;
import org.apache.kafka.connect.runtime.rest.entities.TaskInfo;
import org.apache.kafka.connect.util.Callback;

/**
 * Stands in for Apache's class of this name: starts the program under test, {@code mirrorflow-replicator mm2}, instead of
 * mirroring in this JVM, and answers questions from the topics that the program writes on the target cluster.
 */
public class MirrorMaker {

    public static final List<Class<?>> CONNECTOR_CLASSES = List.of(
        MirrorSourceConnector.class, MirrorHeartbeatConnector.class, MirrorCheckpointConnector.class);

    private static final Duration SETTLE = Duration.ofSeconds(5);

    private final Map<String, String> properties; // as given, before any config provider
    private final MirrorMakerConfig config;
    private final List<String> targets;
    private final Map<SourceAndTarget, ConnectTopics> topics = new HashMap<>();
    private WorkerProcess process;
    private boolean stopped;

    public MirrorMaker(Map<String, String> props) {
        this(props, null);
    }

    public MirrorMaker(Map<String, String> props, List<String> clusters) {
        this(props, clusters, Time.SYSTEM);
    }

    public MirrorMaker(Map<String, String> props, List<String> clusters, Time time) {
        this(props, new MirrorMakerConfig(props), clusters);
    }

    public MirrorMaker(MirrorMakerConfig config, List<String> clusters, Time time) {
        this(config.originalsStrings(), config, clusters);
    }

    private MirrorMaker(Map<String, String> properties, MirrorMakerConfig config, List<String> clusters) {
        this.properties = properties;
        this.config = config;
        this.targets = clusters == null ? List.of() : clusters;
        if (flows().isEmpty()) throw new IllegalArgumentException("No source->target replication flows.");
    }

    /** The flows that this node serves. */
    private List<SourceAndTarget> flows() {
        return config.clusterPairs().stream()
            .filter(pair -> targets.isEmpty() || targets.contains(pair.target())).toList();
    }

    public synchronized void start() {
        if (process != null) throw new IllegalStateException("MirrorMaker instance already started");
        List<String> arguments = new ArrayList<>();
        if (!targets.isEmpty()) {
            arguments.add("--clusters");
            arguments.addAll(targets);
        }
        process = WorkerProcess.start("mirror", properties, arguments);
        // The original has begun to join its groups when it returns; a program needs a while to come as far.
        if (process.await(SETTLE)) process.failIfDead();
    }

    public synchronized void stop() {
        if (process == null || stopped) return;
        stopped = true;
        process.stop();
        topics.values().forEach(ConnectTopics::close);
        topics.clear();
    }

    public void awaitStop() {
        while (process != null && !process.await(Duration.ofSeconds(1)) && !Thread.currentThread().isInterrupted()) {
        }
    }

    public ConnectorStateInfo connectorStatus(SourceAndTarget pair, String connector) {
        return topics(pair).connectorStatus(connector);
    }

    public void taskConfigs(SourceAndTarget pair, String connector, Callback<List<TaskInfo>> callback) {
        ConnectTopics source = topics(pair);
        List<TaskInfo> answer;
        try {
            answer = source.taskConfigs(connector);
        } catch (RuntimeException e) {
            callback.onCompletion(e, null);
            return;
        }
        callback.onCompletion(null, answer);
    }

    /** Fails at once when the program has died: the topics would keep its last words. */
    private synchronized ConnectTopics topics(SourceAndTarget pair) {
        if (!flows().contains(pair)) throw new IllegalArgumentException("No herder for " + pair);
        if (process == null || stopped) throw new IllegalStateException("MirrorMaker is not running");
        process.failIfDead();
        return topics.computeIfAbsent(pair, p -> new ConnectTopics(config.workerConfig(p)));
    }
}
