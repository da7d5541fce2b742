package switches

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/featuregate"
)

const gatesFlag = "feature-gates"

// effects are the gates that act, with their effects. The API server is assembled of
// k8s.io/apiserver, which declares more: those of the etcd client, of the watch cache or of
// generated validation belong to code that is no part of Barque.
var effects = map[featuregate.Feature]string{
	features.APIResponseCompression:            "answers of 128 KiB and more are compressed for clients that take gzip",
	features.AllowParsingUserUIDFromCertAuth:   "the UID of a user may stand in a client certificate",
	features.ConstrainedImpersonation:          "rights to impersonate may be limited to verbs",
	features.MutatingAdmissionPolicy:           "MutatingAdmissionPolicies act",
	features.ShardedListAndWatch:               "lists and watches may select a shard of the objects",
	features.StorageVersionHash:                "discovery has a hash of the version in which a resource is stored",
	features.UnauthenticatedHTTP2DOSMitigation: "a connection of HTTP/2 ends after a request without valid credentials",
	features.WatchList:                         "a watch may begin with the objects that exist",
}

// Gates are the gates that an operator sets. The zero value leaves all at their defaults.
type Gates map[string]bool

// addFlag adds the flag.
func (g *Gates) addFlag(f *pflag.FlagSet) {
	f.Var(cliflag.NewMapStringBool((*map[string]bool)(g)), gatesFlag,
		"feature gates of the API server, as NAME=true|false; give the same to all servers. These can be set: "+known())
}

// known describes the gates that act.
func known() string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(effects)) {
		spec := utilfeature.DefaultMutableFeatureGate.GetAll()[name]
		stage := string(spec.PreRelease)
		if stage == "" {
			stage = "GA"
		}
		out = append(out, fmt.Sprintf("%s (%s, default %t: %s)", name, stage, spec.Default, effects[name]))
	}
	return strings.Join(out, "; ")
}

// check returns an error for gates that cannot be set.
func (g Gates) check() error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(g)) {
		if why := refusal(featuregate.Feature(name)); why != "" {
			errs = append(errs,
				fmt.Errorf("--%s %s=%t: %s. These can be set: %s", gatesFlag, name, g[name], why,
					strings.Join(Settable(), ", ")))
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	if err := utilfeature.DefaultMutableFeatureGate.DeepCopy().SetFromMap(g); err != nil { // a gate that is locked
		return fmt.Errorf("--%s: %w", gatesFlag, err)
	}
	return nil
}

func refusal(name featuregate.Feature) string {
	if effects[name] != "" {
		return ""
	}
	if _, declared := utilfeature.DefaultMutableFeatureGate.GetAll()[name]; !declared {
		return "the API server has no gate of this name that it could switch"
	}
	if name == "AllAlpha" || name == "AllBeta" {
		return "name each gate"
	}
	return "the code behind this gate is no part of Barque, and nothing would change"
}

// Settable returns the names of the gates that can be set.
func Settable() []string {
	var out []string
	for name := range effects {
		out = append(out, string(name))
	}
	slices.Sort(out)
	return out
}

// Apply sets the gates for the whole process, before a server is made, and shows them in the metric
// kubernetes_feature_enabled.
func (g Gates) Apply() error {
	if err := g.check(); err != nil {
		return err
	}
	if err := utilfeature.DefaultMutableFeatureGate.SetFromMap(g); err != nil {
		return fmt.Errorf("--%s: %w", gatesFlag, err)
	}
	utilfeature.DefaultMutableFeatureGate.AddMetrics()
	return nil
}

// changed returns the gates that are not at their defaults.
func (g Gates) changed() Gates {
	all, out := utilfeature.DefaultMutableFeatureGate.GetAll(), Gates{}
	for name, on := range g {
		if spec, declared := all[featuregate.Feature(name)]; !declared || spec.Default != on {
			out[name] = on
		}
	}
	return out
}
