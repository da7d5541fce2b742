package switches

import (
	"io"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/metrics/legacyregistry"
)

// TestCheck: a switch without an effect, or of a version with which the cluster works, is refused.
// The error names the switches that there are.
func TestCheck(t *testing.T) {
	served := []schema.GroupVersion{{Version: "v1"}, {Group: "apps", Version: "v1"},
		{Group: "autoscaling", Version: "v2"}, {Group: "autoscaling", Version: "v1"}}
	for args, want := range map[string]string{
		"":                 "",
		"--feature-gates=": "",
		"--feature-gates=ShardedListAndWatch=true,WatchList=false":                 "",
		"--feature-gates=ShardedListAndWatch=true --feature-gates=WatchList=false": "",
		"--feature-gates=CBORServingAndStorage=true":                               "--feature-gates CBORServingAndStorage=true: the code behind this gate is no part of Barque, and nothing would change. These can be set: APIResponseCompression",
		"--feature-gates=InPlacePodVerticalScaling=true":                           "--feature-gates InPlacePodVerticalScaling=true: the API server has no gate of this name",
		"--feature-gates=AllAlpha=true":                                            "--feature-gates AllAlpha=true: name each gate",
		"--feature-gates=WatchList":                                                "malformed pair",
		"--feature-gates=WatchList=maybe":                                          "invalid value of WatchList",
		"--runtime-config=api/all=true":                                            "",
		"--runtime-config=api/beta=true,api/alpha=false":                           "",
		"--runtime-config=autoscaling/v1=false":                                    "",
		"--runtime-config=autoscaling/v2":                                          "malformed pair",
		"--runtime-config=api/all=false":                                           "--runtime-config api/all=false: the cluster itself works with these versions; name those to turn off: autoscaling/v1, events.k8s.io/v1",
		"--runtime-config=apps/v1=false":                                           "--runtime-config apps/v1=false: the cluster itself works with this version; these can be off: autoscaling/v1",
		"--runtime-config=v1=false":                                                "--runtime-config v1=false: the cluster itself works with this version",
		"--runtime-config=apps/v1beta1=true":                                       "--runtime-config apps/v1beta1=true: there is no such version; of this group there is apps/v1",
		"--runtime-config=extensions/v1beta1=true":                                 "--runtime-config extensions/v1beta1=true: there is no such group",
		"--runtime-config=apps/v1/deployments=false":                               "--runtime-config apps/v1/deployments=false: want GROUP/VERSION",
		"--runtime-config=apps/v1=maybe":                                           "--runtime-config apps/v1=maybe: want true or false",
		"--runtime-config=a/b/c/d=true":                                            "--runtime-config a/b/c/d=true: want GROUP/VERSION",
	} {
		t.Run(args, func(t *testing.T) {
			var o Options
			f := pflag.NewFlagSet("", pflag.ContinueOnError)
			f.SetOutput(io.Discard)
			o.AddFlags(f)
			err := f.Parse(strings.Fields(args))
			if err == nil {
				err = o.Check(served)
			}
			switch {
			case want == "" && err != nil:
				t.Error(err)
			case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
				t.Errorf("%v, want %q", err, want)
			}
		})
	}
}

// TestFiles: servers with other switches are seen to differ, those with the same in another order
// or spelling are not, and one that switches nothing has none.
func TestFiles(t *testing.T) {
	hash := func(args string) string {
		var o Options
		f := pflag.NewFlagSet("", pflag.ContinueOnError)
		o.AddFlags(f)
		if err := f.Parse(strings.Fields(args)); err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, s := range o.Files() {
			out = append(out, s.Flag+" "+s.Hash)
		}
		return strings.Join(out, "; ")
	}
	a, b := hash("--feature-gates=WatchList=false,ShardedListAndWatch=true"),
		hash("--feature-gates=ShardedListAndWatch=true --feature-gates=WatchList=false")
	if a != b || !strings.HasPrefix(a, "--feature-gates ") {
		t.Errorf("%q and %q", a, b)
	}
	if c := hash("--feature-gates=WatchList=true,ShardedListAndWatch=true"); c == a {
		t.Errorf("other values have %q", c)
	}
	if c := hash("--runtime-config=autoscaling/v1=false"); !strings.HasPrefix(c, "--runtime-config ") {
		t.Errorf("versions have %q", c)
	}
	for _, args := range []string{"", "--feature-gates=WatchList=true,ShardedListAndWatch=false",
		"--runtime-config=api/all=true,api/ga=1,api/beta=true,api/alpha=false",
		"--runtime-config=autoscaling/v1=true,events.k8s.io/v1=T"} {
		if c := hash(args); c != "" {
			t.Errorf("%q switches nothing, and there is %q", args, c)
		}
	}
	for args, as := range map[string]string{
		"--feature-gates=WatchList=0,StorageVersionHash=true": "--feature-gates=WatchList=false",
		"--runtime-config=autoscaling/v1=0,api/all=true":      "--runtime-config=autoscaling/v1=false",
	} {
		if a, b := hash(args), hash(as); a != b {
			t.Errorf("%q has %q, and %q has %q", args, a, as, b)
		}
	}
}

// TestApply: gates count for the process, and are shown as a metric.
func TestApply(t *testing.T) {
	const gate = "ShardedListAndWatch"
	if utilfeature.DefaultFeatureGate.Enabled(gate) {
		t.Fatal("it is on by default")
	}
	t.Cleanup(func() {
		if err := (Gates{gate: false}).Apply(); err != nil {
			t.Error(err)
		}
	})
	if err := (Gates{gate: true}).Apply(); err != nil {
		t.Fatal(err)
	}
	if !utilfeature.DefaultFeatureGate.Enabled(gate) {
		t.Error("it is off")
	}
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.Metric {
			if f.GetName() == "kubernetes_feature_enabled" && strings.Contains(m.String(), gate) &&
				m.GetGauge().GetValue() == 1 {
				return
			}
		}
	}
	t.Error("no metric has it")
}
