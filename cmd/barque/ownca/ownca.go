// Package ownca has the flags of `barque cert rotate` for a CA that an operator brings.
package ownca

import (
	"errors"
	"os"
	"time"

	"github.com/spf13/pflag"

	"github.com/barque/barque/internal/exitcode"
	"github.com/barque/barque/membership/exchange"
	"github.com/barque/barque/pki"
)

// Flags are the files of the next CA, or the choice of a built-in one.
type Flags struct {
	File, KeyFile string
	BuiltIn       bool
	Joint         bool // one CA for all purposes
}

// Add adds the flags.
func (o *Flags) Add(f *pflag.FlagSet) {
	f.StringVar(&o.File, "ca-file", "",
		"with --ca: certificates of a CA of your own, PEM: the cluster's next CA, then each one's issuer, up to the root")
	f.StringVar(&o.KeyFile, "ca-key-file", "",
		"with --ca: file with the key of that CA, for its owner only (mode 0600)")
	f.BoolVar(&o.Joint, "joint", false,
		"with --ca: one CA for clients, servers and the front proxy, before you go back to an earlier version")
	f.BoolVar(&o.BuiltIn, "built-in", false,
		"with --ca: exchange a CA of your own for one that the cluster makes itself")
}

// Check returns an error for wrong flags. ca is set if the CA is exchanged, and other if a
// running exchange is undone or forced.
func (o *Flags) Check(ca, other bool) error {
	switch given := o.File != "" || o.KeyFile != ""; {
	case !given && !o.BuiltIn && !o.Joint:
		return nil
	case !ca:
		return errors.New(
			"--ca-file, --ca-key-file, --built-in and --joint belong to the exchange of the CA: give --ca")
	case other:
		return errors.New(
			"--undo and --force change a running exchange, --ca-file, --built-in and --joint begin one: give one of them")
	case given && o.BuiltIn:
		return errors.New("--built-in is for a CA that the cluster makes itself: leave --ca-file and --ca-key-file out")
	case given && (o.File == "" || o.KeyFile == ""):
		return errors.New(
			"--ca-file and --ca-key-file belong together: give both, the certificates of the CA and its key")
	}
	return nil
}

// Read reads and checks the CA in the files; nil without files. The servers check it again, with
// the names that their certificates have.
func (o *Flags) Read() (*exchange.Given, error) {
	if o.File == "" {
		return nil, nil
	}
	if _, err := pki.ReadExternal(o.File, o.KeyFile, time.Now()); err != nil {
		if errors.Is(err, pki.ErrUnfit) {
			err = &exitcode.Error{Code: exitcode.Refused, Err: err}
		}
		return nil, err
	}
	chain, err := os.ReadFile(o.File)
	if err != nil {
		return nil, err
	}
	key, err := os.ReadFile(o.KeyFile)
	if err != nil {
		return nil, err
	}
	return &exchange.Given{Chain: chain, Key: key}, nil
}
