package config_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	configv1 "k8s.io/kube-scheduler/config/v1"

	"github.com/barque/barque/scheduler"
	"github.com/barque/barque/scheduler/config"
	"github.com/barque/barque/scheduler/framework"
	"github.com/barque/barque/scheduler/plugins"
	"github.com/barque/barque/scheduler/plugins/names"
)

const head = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"

// apply reads a policy from body, behind the head of a file.
func apply(t *testing.T, body string) (scheduler.Config, []string) {
	t.Helper()
	p, err := config.Parse([]byte(head + body))
	if err != nil {
		t.Fatal(err)
	}
	var c scheduler.Config
	p.Apply(&c)
	return c, p.Notes
}

func TestAnEmptyFileIsTheDefault(t *testing.T) {
	c, notes := apply(t, "")
	if len(c.Profiles) != 1 || c.Profiles[0].SchedulerName != "default-scheduler" || len(notes) != 0 {
		t.Fatalf("profiles %+v, notes %q", c.Profiles, notes)
	}
	if !slices.Equal(c.Profiles[0].Plugins, plugins.Default().Plugins) || len(c.Profiles[0].Points) != 0 ||
		len(c.Profiles[0].Args) != 0 {
		t.Errorf("the profile is %+v, want the default", c.Profiles[0])
	}
	if c.InitialBackoff != time.Second || c.MaxBackoff != 10*time.Second || c.Parallelism != 0 ||
		c.PercentageOfNodesToScore != 0 {
		t.Errorf("back-off %s to %s, parallelism %d, %d %%", c.InitialBackoff, c.MaxBackoff, c.Parallelism,
			c.PercentageOfNodesToScore)
	}
	var zero *config.Policy
	zero.Apply(&c) // no file changes nothing
}

func TestSettings(t *testing.T) {
	c, notes := apply(t, `
parallelism: 3
percentageOfNodesToScore: 20
podInitialBackoffSeconds: 2
podMaxBackoffSeconds: 60
leaderElection: {leaderElect: true, resourceLock: endpoints}
clientConnection: {qps: 5}
enableProfiling: false
delayCacheUntilActive: true
profiles:
- schedulerName: default-scheduler
  percentageOfNodesToScore: 70
  plugins:
    multiPoint:
      disabled: [{name: ImageLocality}, {name: VolumeZone}, {name: Nonesuch}]
      enabled: [{name: NodeAffinity, weight: 9}]
    preFilter:
      disabled: [{name: "*"}]
    score:
      disabled: [{name: "*"}]
      enabled: [{name: NodeResourcesFit, weight: 5}]
    permit:
      disabled: [{name: "*"}]
  pluginConfig:
  - name: NodeResourcesFit
    args:
      scoringStrategy:
        type: RequestedToCapacityRatio
        resources: [{name: cpu, weight: 2}, {name: example.com/gpu}]
        requestedToCapacityRatio: {shape: [{utilization: 0, score: 0}, {utilization: 100, score: 10}]}
  - name: VolumeBinding
    args: {bindTimeoutSeconds: 60}
  - name: DynamicResources
    args: {filterTimeout: 3s}
  - name: GangScheduling
    args: {}
- schedulerName: packer
`)
	if c.Parallelism != 3 || c.PercentageOfNodesToScore != 20 || c.InitialBackoff != 2*time.Second ||
		c.MaxBackoff != time.Minute {
		t.Errorf("parallelism %d, %d %%, back-off %s to %s", c.Parallelism, c.PercentageOfNodesToScore,
			c.InitialBackoff, c.MaxBackoff)
	}
	p := c.Profiles[0]
	if *p.PercentageOfNodesToScore != 70 || c.Profiles[1].PercentageOfNodesToScore != nil {
		t.Errorf("percentages of the profiles: %v, %v", p.PercentageOfNodesToScore,
			c.Profiles[1].PercentageOfNodesToScore)
	}
	want := plugins.Default().Plugins
	want = slices.DeleteFunc(want, func(e framework.Enabled) bool {
		return e.Name == names.ImageLocality || e.Name == names.VolumeZone
	})
	want[slices.IndexFunc(want, func(e framework.Enabled) bool { return e.Name == names.NodeAffinity })].Weight = 9
	if !slices.Equal(p.Plugins, want) {
		t.Errorf("plugins are %v, want %v", p.Plugins, want)
	}
	if at := p.Points[framework.Score]; !slices.Equal(at.Enabled,
		[]framework.Enabled{{Name: names.NodeResourcesFit, Weight: 5}}) || !slices.Equal(at.Disabled, []string{"*"}) {
		t.Errorf("at score: %+v", at)
	}
	fit := p.Args[names.NodeResourcesFit].(*configv1.NodeResourcesFitArgs).ScoringStrategy
	if fit.Resources[0].Weight != 2 || fit.Resources[1].Weight != 1 ||
		fit.RequestedToCapacityRatio.Shape[1].Score != 10 {
		t.Errorf("arguments of NodeResourcesFit: %+v", fit)
	}
	volumes := p.Args[names.VolumeBinding].(*configv1.VolumeBindingArgs)
	if *volumes.BindTimeoutSeconds != 60 || len(volumes.Shape) != 2 {
		t.Errorf("arguments of VolumeBinding: %+v", volumes)
	}
	got := p.Args[names.DynamicResources].(*configv1.DynamicResourcesArgs)
	if got.FilterTimeout.Duration != 3*time.Second {
		t.Errorf("arguments of DynamicResources: %+v", got)
	}
	for _, about := range []string{"leaderElection ", "clientConnection ", "enableProfiling ", "delayCacheUntilActive ",
		`"Nonesuch"`, "permit.disabled ", "profiles[0].pluginConfig[3] "} {
		if !slices.ContainsFunc(notes, func(n string) bool { return strings.Contains(n, about) }) {
			t.Errorf("no note about %s among %q", about, notes)
		}
	}
	if len(notes) != 7 {
		t.Errorf("%d notes: %q", len(notes), notes)
	}
}

func TestExtenders(t *testing.T) {
	c, notes := apply(t, `
extenders:
- urlPrefix: https://10.0.0.9/x
  filterVerb: filter
  enableHTTPS: true
  httpTimeout: 2s
  managedResources: [{name: example.com/gpu, ignoredByScheduler: true}, {name: example.com/fpga}]
profiles:
- pluginConfig: [{name: NodeResourcesFit, args: {ignoredResources: [example.com/nic]}}]
`)
	if len(c.Extenders) != 1 || c.Extenders[0].HTTPTimeout.Duration != 2*time.Second {
		t.Errorf("extenders: %+v", c.Extenders)
	}
	got := c.Profiles[0].Args[names.NodeResourcesFit].(*configv1.NodeResourcesFitArgs).IgnoredResources
	if !slices.Equal(got, []string{"example.com/nic", "example.com/gpu"}) {
		t.Errorf("ignored resources: %v", got)
	}
	if len(notes) != 1 || !strings.Contains(notes[0], "extenders[0]: the extender's certificate is not verified") {
		t.Errorf("notes: %q", notes)
	}
}

// TestExample: the example file for users is valid.
func TestExample(t *testing.T) {
	p, err := config.Load(filepath.Join("..", "..", "examples", "scheduling-policy.yaml"))
	if err != nil || len(p.Notes) > 0 {
		t.Fatalf("error %v, notes %q", err, p.Notes)
	}
}

// TestWrongFiles: each fault is reported with its field.
func TestWrongFiles(t *testing.T) {
	profile := func(body string) string { return head + "profiles:\n- " + body }
	args := func(plugin, args string) string {
		return profile("pluginConfig: [{name: " + plugin + ", args: " + args + "}]")
	}
	extender := func(body string) string { return head + "extenders: [{" + body + "}]" }
	const at = "profiles[0].pluginConfig[0].args."
	for name, c := range map[string]struct{ text, says string }{
		"nothing":      {"", "want apiVersion: kubescheduler.config.k8s.io/v1"},
		"not YAML":     {head + "a: [", "yaml"},
		"another kind": {"apiVersion: v1\nkind: Pod\n", "want a KubeSchedulerConfiguration"},
		"another version": {"apiVersion: kubescheduler.config.k8s.io/v1beta3\nkind: KubeSchedulerConfiguration\n",
			"v1beta3"},
		"arguments alone": {"apiVersion: kubescheduler.config.k8s.io/v1\nkind: NodeAffinityArgs\n",
			"want a KubeSchedulerConfiguration"},
		"unknown field":      {head + "profile: []", `unknown field "profile"`},
		"repeated field":     {head + "parallelism: 1\nparallelism: 2", `"parallelism" already set`},
		"field in profile":   {profile("plugin: {}"), `unknown field "profiles[0].plugin"`},
		"field in arguments": {args("NodeResourcesFit", "{scoring: 1}"), `unknown field "scoring"`},
		"type in arguments": {args("InterPodAffinity", "{hardPodAffinityWeight: much}"),
			"profiles[0].pluginConfig[0]"},
		"parallelism": {head + "parallelism: 0",
			"parallelism: Invalid value: 0: should be an integer value greater than zero"},
		"percentage": {head + "percentageOfNodesToScore: 101",
			"percentageOfNodesToScore: Invalid value: 101: not in valid range [0-100]"},
		"profile's": {profile("percentageOfNodesToScore: -1"),
			"profiles[0].percentageOfNodesToScore: Invalid value: -1"},
		"initial back-off": {head + "podInitialBackoffSeconds: 0",
			"podInitialBackoffSeconds: Invalid value: 0: must be greater than 0"},
		"greatest back-off": {head + "podInitialBackoffSeconds: 30",
			"podMaxBackoffSeconds: Invalid value: 10: must be greater than or equal to"},
		"absurd back-off": {head + "podMaxBackoffSeconds: 99999999999999", "podMaxBackoffSeconds: Invalid value"},
		"no name":         {profile("schedulerName: a\n- {}"), "profiles[1].schedulerName: Required value"},
		"name twice": {profile("schedulerName: a\n- schedulerName: a"),
			`profiles[1].schedulerName: Duplicate value: "profiles[0].schedulerName"`},
		"queues": {
			profile("schedulerName: a\n- {schedulerName: b, plugins: {queueSort: {enabled: [{name: PrioritySort}]}}}"),
			"profiles[1].plugins.queueSort: Invalid value"},
		"unknown plugin": {profile("plugins: {filter: {enabled: [{name: NodeNam}]}}"),
			`profiles[0].plugins.filter.enabled[0].name: Invalid value: "NodeNam": there is no such plugin; it has DefaultBinder`},
		"absent plugin": {profile("plugins: {multiPoint: {enabled: [{name: GangScheduling}]}}"),
			"this version does not have this plugin of kube-scheduler"},
		"removed plugin": {profile("plugins: {filter: {enabled: [{name: EBSLimits}]}}"),
			`profiles[0].plugins.filter.enabled[0]: Invalid value: "EBSLimits": was invalid in version`},
		"plugin twice": {profile("plugins: {score: {enabled: [{name: NodeAffinity}, {name: NodeAffinity}]}}"),
			"profiles[0].plugins.score.enabled[1].name: Duplicate value"},
		"negative weight": {profile("plugins: {score: {enabled: [{name: NodeAffinity, weight: -1}]}}"),
			"profiles[0].plugins.score.enabled[0].weight: Invalid value: -1"},
		"no part there": {profile("plugins: {score: {enabled: [{name: NodeName}]}}"),
			`profiles[0]: scheduler profile "default-scheduler": plugin "NodeName" has no part in score`},
		"nothing binds": {profile(`plugins: {bind: {disabled: [{name: "*"}]}}`), "no plugin binds"},
		"nothing sorts": {profile(`plugins: {multiPoint: {disabled: [{name: PrioritySort}]}}`),
			"0 plugins sort the queue"},
		"permit": {profile("plugins: {permit: {enabled: [{name: NodeName}]}}"),
			"profiles[0].plugins.permit.enabled[0].name: Invalid value"},
		"unknown arguments":  {args("NodeNam", "{}"), `profiles[0].pluginConfig[0].name: Invalid value: "NodeNam"`},
		"arguments for none": {args("NodeName", "{a: 1}"), "profiles[0].pluginConfig[0].args: Forbidden"},
		"arguments twice": {
			profile("pluginConfig: [{name: NodeAffinity, args: {}}, {name: NodeAffinity, args: {}}]"),
			`profiles[0].pluginConfig[1]: Duplicate value: "NodeAffinity"`},
		"arguments of others": {
			args("NodeAffinity", "{kind: InterPodAffinityArgs, apiVersion: kubescheduler.config.k8s.io/v1}"),
			"profiles[0].pluginConfig[0]"},
		"candidates": {
			args("DefaultPreemption", "{minCandidateNodesPercentage: 0, minCandidateNodesAbsolute: 0}"),
			at + "minCandidateNodesPercentage: Invalid value: 0: cannot be zero at the same time"},
		"few candidates": {args("DefaultPreemption", "{minCandidateNodesAbsolute: -1}"),
			at + "minCandidateNodesAbsolute: Invalid value: -1: not in valid range [0, inf)"},
		"many candidates": {args("DefaultPreemption", "{minCandidateNodesPercentage: 101}"),
			at + "minCandidateNodesPercentage: Invalid value: 101"},
		"hard weight": {args("InterPodAffinity", "{hardPodAffinityWeight: 101}"),
			at + "hardPodAffinityWeight: Invalid value: 101: not in valid range [0, 100]"},
		"added affinity": {
			args("NodeAffinity",
				"{addedAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: Near}]}]}}}"), at + "addedAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].operator"},
		"added preference": {
			args("NodeAffinity",
				"{addedAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, preference: {matchExpressions: [{key: a, operator: Near}]}}]}}"), at + "addedAffinity.preferredDuringSchedulingIgnoredDuringExecution"},
		"balance twice": {args("NodeResourcesBalancedAllocation", "{resources: [{name: cpu}, {name: cpu}]}"),
			at + "resources[1].name: Duplicate value"},
		"balance weight": {args("NodeResourcesBalancedAllocation", "{resources: [{name: cpu, weight: 2}]}"),
			at + "resources[0].weight: Invalid value: 2: must be 1"},
		"ignored": {args("NodeResourcesFit", "{ignoredResources: ['a b']}"),
			at + "ignoredResources[0]: Invalid value"},
		"ignored group": {args("NodeResourcesFit", "{ignoredResourceGroups: [a/b]}"),
			at + "ignoredResourceGroups[0]: Invalid value: \"a/b\": resource group name can't contain '/'"},
		"strategy": {args("NodeResourcesFit", "{scoringStrategy: {type: Best}}"),
			at + `scoringStrategy.type: Unsupported value: "Best"`},
		"strategy's weight": {
			args("NodeResourcesFit", "{scoringStrategy: {type: MostAllocated, resources: [{name: cpu, weight: 101}]}}"),
			at +
				"scoringStrategy.resources[0].weight: Invalid value: 101: resource weight of cpu not in valid range (0, 100]"},
		"no ratio": {args("NodeResourcesFit", "{scoringStrategy: {type: RequestedToCapacityRatio}}"),
			at + "scoringStrategy.requestedToCapacityRatio: Required value"},
		"ratio of another": {
			args("NodeResourcesFit", "{scoringStrategy: {type: MostAllocated, requestedToCapacityRatio: {}}}"),
			at + "scoringStrategy.requestedToCapacityRatio: Forbidden"},
		"no shape": {
			args("NodeResourcesFit",
				"{scoringStrategy: {type: RequestedToCapacityRatio, requestedToCapacityRatio: {}}}"),
			at + "scoringStrategy.requestedToCapacityRatio.shape: Required value"},
		"shape's order": {
			args("NodeResourcesFit",
				"{scoringStrategy: {type: RequestedToCapacityRatio, requestedToCapacityRatio: {shape: [{utilization: 5, score: 1}, {utilization: 5, score: 2}]}}}"), "shape[1].utilization: Invalid value: 5: values must be sorted"},
		"shape's score": {
			args("NodeResourcesFit",
				"{scoringStrategy: {type: RequestedToCapacityRatio, requestedToCapacityRatio: {shape: [{utilization: 5, score: 11}]}}}"), "shape[0].score: Invalid value: 11: not in valid range [0, 10]"},
		"defaulting": {args("PodTopologySpread", "{defaultingType: Some}"),
			at + `defaultingType: Unsupported value: "Some"`},
		"system and list": {
			args("PodTopologySpread",
				"{defaultConstraints: [{maxSkew: 1, topologyKey: a, whenUnsatisfiable: ScheduleAnyway}]}"),
			at + "defaultingType: Invalid value"},
		"constraint": {
			args("PodTopologySpread",
				"{defaultingType: List, defaultConstraints: [{maxSkew: 0, topologyKey: '', whenUnsatisfiable: Maybe, labelSelector: {}}]}"), at + "defaultConstraints[0].labelSelector: Forbidden"},
		"constraint twice": {
			args("PodTopologySpread",
				"{defaultingType: List, defaultConstraints: [{maxSkew: 1, topologyKey: a, whenUnsatisfiable: DoNotSchedule}, {maxSkew: 2, topologyKey: a, whenUnsatisfiable: DoNotSchedule}]}"), at + `defaultConstraints[1]: Duplicate value: "{a, DoNotSchedule}"`},
		"volume binding": {args("VolumeBinding", "{bindTimeoutSeconds: -1}"),
			at + "bindTimeoutSeconds: Invalid value: -1"},
		"volumes' shape": {args("VolumeBinding", "{shape: [{utilization: 101, score: 1}]}"),
			at + "shape[0].utilization: Invalid value: 101: not in valid range [0, 100]"},
		"devices' filter": {args("DynamicResources", "{filterTimeout: -1s}"), at + "filterTimeout: Invalid value"},
		"devices' binding": {args("DynamicResources", "{bindingTimeout: 999ms}"),
			at + "bindingTimeout: Invalid value"},
		"extender's address": {extender("urlPrefix: 'localhost:80'"), "extenders[0].urlPrefix: Invalid value"},
		"extender's weight": {extender("urlPrefix: 'http://a', prioritizeVerb: p"),
			"extenders[0].weight: Invalid value: 0: must have a positive weight applied to it"},
		"extender's time-out": {extender("urlPrefix: 'http://a', httpTimeout: -1s"),
			"extenders[0].httpTimeout: Invalid value"},
		"extender's resource": {extender("urlPrefix: 'http://a', managedResources: [{name: cpu}]"),
			`extenders[0].managedResources[0].name: Invalid value: "cpu": is an invalid extended resource name`},
		"resource twice": {extender("urlPrefix: 'http://a', managedResources: [{name: a/b}, {name: a/b}]"),
			"extenders[0].managedResources[1].name: Invalid value: \"a/b\": duplicate"},
		"two binders": {
			head + "extenders: [{urlPrefix: 'http://a', bindVerb: b}, {urlPrefix: 'http://b', bindVerb: b}]",
			"only one extender can implement bind"},
		"extender's CA": {extender("urlPrefix: 'https://a', tlsConfig: {caFile: /no/such/file}"),
			"extenders[0].tlsConfig: "},
		"several faults": {head + "parallelism: 0\npercentageOfNodesToScore: 101",
			"it has several faults:\n  parallelism: "},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "policy.yaml")
			if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := config.Load(file)
			if err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), file) {
				t.Errorf("the error is %v, want %q and the file's name", err, c.says)
			}
		})
	}
}
