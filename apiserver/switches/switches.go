// Package switches has what of the API server an operator may switch on and off: feature gates, by
// --feature-gates, and API versions, by --runtime-config, as kube-apiserver takes them.
//
// What would change nothing is refused and not ignored: the operator who sets it expects something
// of it.
package switches

import (
	"errors"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/barque/barque/apiserver/configfile"
)

// Options are the switches of a server. The zero value leaves all at their defaults.
type Options struct {
	Gates    Gates
	Versions Versions
}

// AddFlags adds the flags.
func (o *Options) AddFlags(f *pflag.FlagSet) {
	o.Gates.addFlag(f)
	o.Versions.addFlag(f)
}

// Check returns what is wrong with the options. served are the versions that there are.
func (o Options) Check(served []schema.GroupVersion) error {
	return errors.Join(o.Gates.check(), o.Versions.check(served))
}

// Files returns the state of the flags, which all servers must have alike. A flag that leaves all
// at the defaults is as none.
func (o Options) Files() (out []configfile.State) {
	for _, s := range []struct{ flag, text string }{{gatesFlag, o.Gates.changed().String()}, {versionsFlag, o.Versions.changed().String()}} {
		if s.text != "" {
			out = append(out, configfile.State{Flag: "--" + s.flag, Hash: configfile.Hash([]byte(s.text))})
		}
	}
	return out
}
