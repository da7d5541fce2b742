package switches

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	cliflag "k8s.io/component-base/cli/flag"
)

const versionsFlag = "runtime-config"

// optional are the versions that no part of Barque needs: other forms of the objects of
// autoscaling/v2, and of events in v1. Barque serves stable versions alone but for metrics,
// and its controllers and kubelets work with all others.
var optional = []schema.GroupVersion{autoscalingv1.SchemeGroupVersion, eventsv1.SchemeGroupVersion}

// Versions are the API versions that an operator turns on and off. The zero value leaves all on.
type Versions map[string]string

// addFlag adds the flag.
func (c *Versions) addFlag(f *pflag.FlagSet) {
	f.Var(cliflag.NewMapStringString((*map[string]string)(c)), versionsFlag,
		"API versions to serve or not, as GROUP/VERSION=true|false, or api/all, api/ga, api/beta, api/alpha; give the same to all servers. These can be off: "+joined(optional))
}

// check returns an error for versions that cannot be switched. served are all versions.
func (c Versions) check(served []schema.GroupVersion) error {
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(c)) {
		on, err := parseBool(c[key])
		if err == nil {
			err = checkVersion(key, on, served)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("--%s %s=%s: %w", versionsFlag, key, c[key], err))
		}
	}
	return errors.Join(errs...)
}

func parseBool(text string) (bool, error) {
	on, err := strconv.ParseBool(text)
	if err != nil {
		return false, errors.New("want true or false")
	}
	return on, nil
}

func checkVersion(key string, on bool, served []schema.GroupVersion) error {
	switch key {
	case "api/alpha", "api/beta": // of which there are none
		return nil
	case "api/all", "api/ga":
		if !on {
			return errors.New(
				"the cluster itself works with these versions; name those to turn off: " + joined(optional))
		}
		return nil
	}
	if strings.Count(key, "/") == 2 {
		return errors.New("want GROUP/VERSION: single resources cannot be switched")
	}
	gv, err := schema.ParseGroupVersion(key)
	if err != nil {
		return errors.New("want GROUP/VERSION")
	}
	if !slices.Contains(served, gv) {
		if of := versionsOf(gv.Group, served); len(of) > 0 {
			return fmt.Errorf("there is no such version; of this group there is %s", joined(of))
		}
		return errors.New("there is no such group. Barque serves stable versions alone: see kubectl api-versions")
	}
	if !on && !slices.Contains(optional, gv) {
		return errors.New("the cluster itself works with this version; these can be off: " + joined(optional))
	}
	return nil
}

func versionsOf(group string, served []schema.GroupVersion) (out []schema.GroupVersion) {
	for _, gv := range served {
		if gv.Group == group {
			out = append(out, gv)
		}
	}
	return out
}

// Serves reports whether a version is on, after Check.
func (c Versions) Serves(gv schema.GroupVersion) bool {
	text, set := c[gv.String()]
	if !set {
		return true
	}
	on, err := parseBool(text)
	return on || err != nil
}

// changed returns the versions that are off, in one spelling. By default all are on, and the groups
// of versions such as api/all switch nothing: see checkVersion.
func (c Versions) changed() Versions {
	out := Versions{}
	for key, text := range c {
		if on, err := parseBool(text); err == nil && !on && !strings.HasPrefix(key, "api/") {
			out[key] = "false"
		}
	}
	return out
}

func joined(versions []schema.GroupVersion) string {
	var out []string
	for _, gv := range versions {
		out = append(out, gv.String())
	}
	return strings.Join(out, ", ")
}
