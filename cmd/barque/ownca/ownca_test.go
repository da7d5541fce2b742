package ownca

import (
	"bytes"
	"errors"
	"os"
	"testing"

	"github.com/barque/barque/internal/exitcode"
	"github.com/barque/barque/pki/companytest"
)

func TestFlags(t *testing.T) {
	for name, c := range map[string]struct {
		flags     Flags
		ca, other bool
		wrong     bool
	}{
		"nothing":                {Flags{}, false, false, false},
		"undo":                   {Flags{}, true, true, false},
		"both files":             {Flags{File: "a", KeyFile: "b"}, true, false, false},
		"built-in":               {Flags{BuiltIn: true}, true, false, false},
		"no key":                 {Flags{File: "a"}, true, false, true},
		"no chain":               {Flags{KeyFile: "b"}, true, false, true},
		"without --ca":           {Flags{File: "a", KeyFile: "b"}, false, false, true},
		"built-in, without --ca": {Flags{BuiltIn: true}, false, false, true},
		"for all purposes":       {Flags{File: "a", KeyFile: "b", Joint: true}, true, false, false},
		"joint":                  {Flags{Joint: true}, true, false, false},
		"joint, without --ca":    {Flags{Joint: true}, false, false, true},
		"joint, with --force":    {Flags{Joint: true}, true, true, true},
		"with --force":           {Flags{File: "a", KeyFile: "b"}, true, true, true},
		"both kinds":             {Flags{File: "a", KeyFile: "b", BuiltIn: true}, true, false, true},
	} {
		if err := c.flags.Check(c.ca, c.other); (err != nil) != c.wrong {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestRead: a CA that is not fit is refused before it leaves this machine.
func TestRead(t *testing.T) {
	root := companytest.NewRoot(t)
	ca, other := root.Intermediate("Cluster CA", nil), root.Intermediate("Other", nil)
	var o Flags
	if given, err := o.Read(); given != nil || err != nil {
		t.Errorf("without files: %v, %v", given, err)
	}
	o.File, o.KeyFile = ca.Files()
	if given, err := o.Read(); err != nil || !bytes.Equal(given.Chain, ca.Chain()) ||
		!bytes.Equal(given.Key, ca.KeyPEM()) {
		t.Errorf("another CA is read: %v", err)
	}
	_, o.KeyFile = other.Files()
	var coded *exitcode.Error
	if _, err := o.Read(); !errors.As(err, &coded) || coded.Code != exitcode.Refused {
		t.Errorf("another CA's key: %v", err)
	}
	o.KeyFile += "x"
	if _, err := o.Read(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}
