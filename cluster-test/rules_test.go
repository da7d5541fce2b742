package clustertest

import (
	"context"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/barque/barque/internal/needs"
)

// The pages with metrics of a cluster: of a server's API, and of a node.
const (
	pageAPI      = "/metrics"
	pageKubelet  = "/api/v1/nodes/a1/proxy/metrics"
	pageCadvisor = "/api/v1/nodes/a1/proxy/metrics/cadvisor"
)

// wanted is a series that rules or dashboards of kube-prometheus read, with the labels that they
// select or group by. A label's value is a regular expression.
type wanted struct {
	page, name string
	labels     map[string]string
	of         string // the rules, or the dashboard
}

// buckets is a histogram by its name, read by quantiles.
func buckets(page, name, of string, labels map[string]string) []wanted {
	with := maps.Clone(labels)
	if with == nil {
		with = map[string]string{}
	}
	with["le"] = ".+"
	return []wanted{{page, name + "_bucket", with, of}, {page, name + "_count", labels, of}}
}

// each is one of several series with the same labels.
func each(page, of string, labels map[string]string, names ...string) (all []wanted) {
	for _, name := range names {
		all = append(all, wanted{page, name, labels, of})
	}
	return all
}

// kubePrometheus are the series for the jobs apiserver, kubelet, kube-proxy, kube-scheduler and
// kube-controller-manager, and others of a node that docs/metrics.md has. Series that appear with a
// first failure are not here, nor those that Kubernetes itself has no more.
var kubePrometheus = slices.Concat(
	each(pageAPI, "KubeVersionMismatch", map[string]string{"git_version": "v1.+"}, "kubernetes_build_info"),
	each(pageKubelet, "KubeVersionMismatch", map[string]string{"git_version": "v1.+"}, "kubernetes_build_info"),
	each(pageAPI, "KubeClientErrors", map[string]string{"code": "2.."}, "rest_client_requests_total"),
	each(pageKubelet, "KubeClientErrors", map[string]string{"code": "2.."}, "rest_client_requests_total"),
	each(pageAPI, "kube-apiserver-availability", map[string]string{"verb": "LIST|GET", "code": "2..", "resource": ".+"},
		"apiserver_request_total"),
	each(pageAPI, "kube-apiserver-availability",
		map[string]string{"verb": "POST|PUT|PATCH|DELETE", "code": "2..", "resource": ".+"}, "apiserver_request_total"),
	each(pageAPI, "kube-apiserver-burnrate",
		map[string]string{"verb": "LIST|GET", "scope": "resource|", "le": "1", "subresource": ".*"},
		"apiserver_request_duration_seconds_bucket", "apiserver_request_sli_duration_seconds_bucket"),
	each(pageAPI, "kube-apiserver-burnrate", map[string]string{"verb": "LIST|GET", "scope": "namespace", "le": "5"},
		"apiserver_request_duration_seconds_bucket", "apiserver_request_sli_duration_seconds_bucket"),
	each(pageAPI, "kube-apiserver-burnrate", map[string]string{"verb": "LIST|GET", "scope": "cluster", "le": "30"},
		"apiserver_request_duration_seconds_bucket", "apiserver_request_sli_duration_seconds_bucket"),
	buckets(pageAPI, "apiserver_client_certificate_expiration_seconds", "KubeClientCertificateExpiration", nil),
	each(pageAPI, "KubeAggregatedAPIDown", map[string]string{"name": ".+"}, "aggregator_unavailable_apiservice"),
	each(pageAPI, "dashboards API server and controller manager", nil, "process_resident_memory_bytes",
		"process_cpu_seconds_total", "go_goroutines"),
	buckets(pageAPI, "scheduler_scheduling_algorithm_duration_seconds", "kube-scheduler.rules", nil),
	buckets(pageAPI, "scheduler_scheduling_attempt_duration_seconds", "kube-scheduler.rules", nil),
	buckets(pageAPI, "scheduler_pod_scheduling_sli_duration_seconds", "kube-scheduler.rules", nil),

	each(pageKubelet, "kubelet.rules", map[string]string{"node": "a1"}, "kubelet_node_name"),
	buckets(pageKubelet, "kubelet_pleg_relist_duration_seconds", "KubeletPlegDurationHigh", nil),
	buckets(pageKubelet, "kubelet_pleg_relist_interval_seconds", "dashboard kubelet", nil),
	buckets(pageKubelet, "kubelet_pod_worker_duration_seconds", "KubeletPodStartUpLatencyHigh", nil),
	buckets(pageKubelet, "kubelet_pod_start_duration_seconds", "dashboard kubelet", nil),
	buckets(pageKubelet, "kubelet_pod_start_total_duration_seconds", "no rule, docs/metrics.md", nil),
	buckets(pageKubelet, "kubelet_pod_start_sli_duration_seconds", "no rule, docs/metrics.md", nil),
	each(pageKubelet, "no rule, docs/metrics.md", nil, "kubelet_pleg_last_seen_seconds", "kubelet_started_pods_total",
		"kubelet_started_containers_total"),
	buckets(pageKubelet, "kubelet_cgroup_manager_duration_seconds", "dashboard kubelet",
		map[string]string{"operation_type": ".+"}),
	buckets(pageKubelet, "kubelet_runtime_operations_duration_seconds", "dashboard kubelet",
		map[string]string{"operation_type": "run_podsandbox"}),
	each(pageKubelet, "dashboard kubelet", map[string]string{"operation_type": "run_podsandbox"},
		"kubelet_runtime_operations_total"),
	each(pageKubelet, "KubeletClientCertificateExpiration and its kin", nil,
		"kubelet_certificate_manager_client_ttl_seconds", "kubelet_certificate_manager_server_ttl_seconds",
		"kubelet_certificate_manager_client_expiration_renew_errors", "kubelet_server_expiration_renew_errors"),
	each(pageKubelet, "KubeNodeEviction", map[string]string{"eviction_signal": "memory.available"},
		"kubelet_evictions"),
	each(pageKubelet, "dashboard kubelet", map[string]string{"plugin_name": ".+", "state": "desired_state_of_world"},
		"volume_manager_total_volumes"),
	each(pageKubelet, "dashboard kubelet", map[string]string{"plugin_name": ".+", "state": "actual_state_of_world"},
		"volume_manager_total_volumes"),
	each(pageKubelet, "KubePersistentVolumeFillingUp and its kin",
		map[string]string{"namespace": ".+", "persistentvolumeclaim": "data"}, "kubelet_volume_stats_available_bytes",
		"kubelet_volume_stats_capacity_bytes", "kubelet_volume_stats_used_bytes", "kubelet_volume_stats_inodes",
		"kubelet_volume_stats_inodes_free", "kubelet_volume_stats_inodes_used"),
	each(pageKubelet, "dashboard kubelet", nil, "kubelet_running_pods", "kubelet_running_containers",
		"kubelet_desired_pods", "process_resident_memory_bytes", "process_cpu_seconds_total", "go_goroutines"),
	buckets(pageKubelet, "rest_client_request_duration_seconds", "dashboards kubelet and proxy",
		map[string]string{"verb": "GET"}),

	buckets(pageKubelet, "kubeproxy_sync_proxy_rules_duration_seconds", "dashboard proxy", nil),
	buckets(pageKubelet, "kubeproxy_network_programming_duration_seconds", "dashboard proxy", nil),
	each(pageKubelet, "no rule, docs/metrics.md", map[string]string{"ip_family": "IPv4"},
		"kubeproxy_sync_proxy_rules_last_timestamp_seconds",
		"kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds", "kubeproxy_sync_proxy_rules_service_changes_total",
		"kubeproxy_sync_proxy_rules_endpoint_changes_total"),

	each(pageCadvisor, "k8s.rules",
		map[string]string{"image": ".+", "namespace": ".+", "pod": ".+", "container": "hello", "cpu": "total"},
		"container_cpu_usage_seconds_total"),
	each(pageCadvisor, "k8s.rules",
		map[string]string{"image": ".+", "namespace": ".+", "pod": ".+", "container": "hello"},
		"container_memory_working_set_bytes", "container_memory_rss", "container_memory_cache",
		"container_memory_swap"),
	each(pageCadvisor, "CPUThrottlingHigh", map[string]string{"namespace": ".+", "pod": ".+", "container": "hello"},
		"container_cpu_cfs_throttled_periods_total", "container_cpu_cfs_periods_total"),
	each(pageCadvisor, "dashboards of resources",
		map[string]string{"namespace": ".+", "pod": ".+", "container": "hello"},
		"container_memory_usage_bytes", "container_memory_mapped_file", "container_fs_usage_bytes",
		"container_spec_memory_limit_bytes", "container_spec_cpu_quota",
		"container_spec_cpu_period", "container_start_time_seconds"),
	each(pageCadvisor, "dashboards of networks", map[string]string{"namespace": ".+", "pod": ".+", "interface": ".+"},
		"container_network_receive_bytes_total", "container_network_transmit_bytes_total",
		"container_network_receive_packets_total", "container_network_transmit_packets_total",
		"container_network_receive_packets_dropped_total", "container_network_transmit_packets_dropped_total"),
	each(pageCadvisor, "dashboards of nodes", map[string]string{"id": "/"}, "container_cpu_usage_seconds_total",
		"container_memory_working_set_bytes", "container_memory_rss"),
	each(pageCadvisor, "dashboards of nodes", nil, "machine_cpu_cores", "machine_memory_bytes"),
)

// elsewhere are metrics of a node in docs/metrics.md that a quiet cluster does not show, or that no
// rule reads, with the test that knows them.
var elsewhere = map[string]string{
	"kubelet_runtime_operations_errors_total": "appears with a failure: TestOperations",
	"kubelet_terminated_containers_total":     "appears with an end: TestTerminations",
	"csi_operations_seconds":                  "appears with a CSI driver: TestCSI",
	"storage_operation_duration_seconds":      "appears with a CSI driver: TestCSI",
	"container_fs_*":                          "appear with the first access of a disk: TestCadvisorMetrics",
	"container_memory_failcnt":                "no rule reads it: TestCadvisorMetrics",
	"container_memory_failures_total":         "no rule reads it: TestCadvisorMetrics",
	"container_oom_events_total":              "no rule reads it: TestCadvisorMetrics",
	"container_threads":                       "no rule reads it: TestCadvisorMetrics",
	"container_last_seen":                     "no rule reads it: TestCadvisorMetrics",
	"container_cpu_user_seconds_total":        "no rule reads it: TestCadvisorMetrics",
	"container_cpu_system_seconds_total":      "no rule reads it: TestCadvisorMetrics",
	"machine_swap_bytes":                      "no rule reads it: TestCadvisorMetrics",
}

// limited is a pod with limits and a claim, and a Service.
const limited = `
apiVersion: v1
kind: Pod
metadata: {name: hello, labels: {app: hello}}
spec:
  nodeSelector: {kubernetes.io/hostname: a1}
  containers:
  - name: hello
    image: "barque.local/hello:1"
    resources: {limits: {cpu: 100m, memory: 64Mi}}
    volumeMounts: [{name: data, mountPath: /data}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}
---
apiVersion: v1
kind: Service
metadata: {name: hello}
spec: {selector: {app: hello}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Pod
metadata: {name: scheduled}
spec: {containers: [{name: hello, image: "barque.local/hello:1"}]}
`

// TestKubePrometheus: the series that the rules and dashboards of kube-prometheus read exist.
func TestKubePrometheus(t *testing.T) {
	needs.AllTests(t)
	t.Parallel()
	c := Start(t, Options{Servers: 1, Agents: 1})
	s := NewSpace(t, c)
	Eventually(t, deadline, "nodes without taints", c.Healthy)
	s.Apply(limited)
	s.WaitReady("hello")
	s.WaitReady("scheduled")
	Eventually(t, deadline, "all series", func(context.Context) error {
		pages := map[string][]series{}
		for _, page := range []string{pageAPI, pageKubelet, pageCadvisor} {
			r := s.KResult("get", "--raw", page)
			if r.Error != nil {
				return r.Error
			}
			pages[page] = parseSeries(r.Out)
		}
		var missing []string
		for _, w := range kubePrometheus {
			if !slices.ContainsFunc(pages[w.page], w.is) {
				missing = append(missing, fmt.Sprintf("%s%v at %s, of %s", w.name, w.labels, w.page, w.of))
			}
		}
		if len(missing) > 0 {
			return fmt.Errorf("%d of %d are missing:\n%s", len(missing), len(kubePrometheus),
				strings.Join(missing, "\n"))
		}
		return nil
	})
}

// series is one line of a page.
type series struct {
	name   string
	labels map[string]string
}

var seriesLine = regexp.MustCompile(`^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? `)
var seriesLabel = regexp.MustCompile(`([a-zA-Z_]+)="((?:[^"\\]|\\.)*)"`)

func parseSeries(page string) (all []series) {
	for line := range strings.Lines(page) {
		match := seriesLine.FindStringSubmatch(line)
		if match == nil {
			continue
		}
		of := series{match[1], map[string]string{}}
		for _, label := range seriesLabel.FindAllStringSubmatch(match[2], -1) {
			of.labels[label[1]] = label[2]
		}
		all = append(all, of)
	}
	return all
}

// is reports whether a series is wanted. As in Prometheus a label that is not there is empty.
func (w wanted) is(s series) bool {
	if s.name != w.name {
		return false
	}
	for name, want := range w.labels {
		if !regexp.MustCompile("^(?:" + want + ")$").MatchString(s.labels[name]) {
			return false
		}
	}
	return true
}

var (
	documented = regexp.MustCompile(
		"`((?:kubelet|kubeproxy|kubernetes|rest_client|process|go|csi|storage|volume_manager|container|machine)_[a-z_{},*]*)`")
	alternative = regexp.MustCompile(`\{([a-z_,]*)\}`)
)

// TestDocumentedMetrics: each metric of a node in docs/metrics.md is one that TestKubePrometheus
// looks for, or another test. A name that ends in * stands for several.
func TestDocumentedMetrics(t *testing.T) {
	page, err := os.ReadFile("../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(page), "\n## The node\n")
	if !found {
		t.Fatal("docs/metrics.md has no section on the node")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	section, _, _ = strings.Cut(section, "\nNot here: ")
	fits := func(pattern, name string) bool {
		prefix, several := strings.CutSuffix(pattern, "*")
		return pattern == name || several && strings.HasPrefix(name, prefix)
	}
	seen := 0
	for _, match := range documented.FindAllStringSubmatch(section, -1) {
		if match[1] == "container_type" {
			continue // a label
		}
		names := []string{match[1]}
		if group := alternative.FindStringSubmatch(match[1]); group != nil {
			names = nil
			for part := range strings.SplitSeq(group[1], ",") {
				names = append(names, strings.Replace(match[1], group[0], part, 1))
			}
		}
		for _, name := range names {
			seen++
			looked := slices.ContainsFunc(kubePrometheus,
				func(w wanted) bool { return fits(name, w.name) || fits(name+"_bucket", w.name) })
			for other := range elsewhere {
				looked = looked || fits(other, name)
			}
			if !looked {
				t.Errorf("no test looks for %s", name)
			}
		}
	}
	if seen < 50 {
		t.Errorf("%d metrics are documented: the page is not read", seen)
	}
}

func TestParseSeries(t *testing.T) {
	all := parseSeries("# HELP a b\na 1\nb{x=\"1\",y=\"a \\\" }\"} 2 3\n")
	if len(all) != 2 || all[0].name != "a" || all[1].labels["y"] != `a \" }` {
		t.Errorf("%+v", all)
	}
	w := wanted{name: "b", labels: map[string]string{"x": "1|2", "z": ".*"}}
	if !w.is(all[1]) || w.is(all[0]) || (wanted{name: "b", labels: map[string]string{"x": ""}}).is(all[1]) {
		t.Error("series are told apart wrongly")
	}
}
