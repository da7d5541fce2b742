// Package switches has the feature gates and API versions that an operator may switch on and off,
// by --feature-gates and --runtime-config of kube-apiserver.
//
// A switch without an effect is refused and not ignored: its operator expects one.
package switches

import (
	"errors"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime/schema"
	cliflag "k8s.io/component-base/cli/flag"

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

// Check returns an error for faulty options. served are the existing versions.
func (o Options) Check(served []schema.GroupVersion) error {
	return errors.Join(o.Gates.check(), o.Versions.check(served))
}

// Files returns the state of the flags, which all servers must have alike. A flag that leaves all
// at the defaults is as none.
func (o Options) Files() (out []configfile.State) {
	gates, versions := map[string]bool(o.Gates.changed()), map[string]string(o.Versions.changed())
	for _, s := range []struct{ flag, text string }{
		{gatesFlag, cliflag.NewMapStringBool(&gates).String()},
		{versionsFlag, cliflag.NewMapStringString(&versions).String()},
	} {
		if s.text != "" {
			out = append(out, configfile.State{Flag: "--" + s.flag, Hash: configfile.Hash([]byte(s.text))})
		}
	}
	return out
}
