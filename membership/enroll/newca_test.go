package enroll

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/barque/barque/membership/credentials"
	"github.com/barque/barque/pki"
	"github.com/barque/barque/pki/companytest"
)

func optionsWithCA(t *testing.T, ca *companytest.CA) *Options {
	t.Helper()
	o := &Options{DataDir: t.TempDir(), Name: "s1",
		Certificates: func() []pki.Request {
			return []pki.Request{
				{CommonName: "barque:apiserver", Usage: pki.Server, Names: []string{"kubernetes", "s1", "10.0.0.1"}}}
		},
		Settings: func(json.RawMessage) (json.RawMessage, error) { return json.RawMessage("{}"), nil }}
	o.CAFile, o.CAKeyFile = ca.Files()
	return o
}

// TestAClusterBeginsWithAnExternalCA: the key is in the data directory, for its owner only, and the
// files are not read again.
func TestAClusterBeginsWithAnExternalCA(t *testing.T) {
	ca := companytest.NewRoot(t).Intermediate("Cluster CA", nil)
	o := optionsWithCA(t, ca)
	first, err := Server(t.Context(), o, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(credentials.Dir(o.DataDir), credentials.CAKey)
	key, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(key, ca.KeyPEM()) {
		t.Errorf("the key is not that of the CA: %v", err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the mode of the key is %v: %v", info.Mode(), err)
	}
	if b := first.CA(); !b.External() || len(b.CAs) != 1 || len(b.Bridges) != 1 {
		t.Errorf("the cluster believes %d CAs, and sends %d certificates along", len(b.CAs), len(b.Bridges))
	}
	for _, file := range []string{o.CAFile, o.CAKeyFile} {
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
	again, err := Server(t.Context(), o, slog.New(slog.DiscardHandler))
	if err != nil || again.CA().CAs[0] != first.CA().CAs[0] {
		t.Errorf("the second start, without the files: %v", err)
	}
}

// TestFlagsOfAnExternalCA: what cannot count, or cannot be the cluster's, is a wrong option, and
// leaves nothing in the data directory.
func TestFlagsOfAnExternalCA(t *testing.T) {
	root := companytest.NewRoot(t)
	good := root.Intermediate("Cluster CA", nil)
	narrow := root.Intermediate("Cluster CA",
		func(c *x509.Certificate) { c.PermittedDNSDomains = []string{"example.com"} })
	for name, c := range map[string]struct {
		ca     *companytest.CA
		change func(o *Options)
		want   string
	}{
		"no key file":       {good, func(o *Options) { o.CAKeyFile = "" }, "belong together"},
		"no file":           {good, func(o *Options) { o.CAFile = "" }, "belong together"},
		"joining":           {good, func(o *Options) { o.Join = "https://10.0.0.1:6443" }, "--join joins one"},
		"from a backup":     {good, func(o *Options) { o.Restore.File = "x.backup" }, "exchange the CA afterwards"},
		"the file is gone":  {good, func(o *Options) { o.CAFile += "x" }, "no such file"},
		"the files swapped": {good, func(o *Options) { o.CAFile, o.CAKeyFile = o.CAKeyFile, o.CAFile }, "chmod 600"},
		"forbids names":     {narrow, func(*Options) {}, `forbid "kubernetes"`},
	} {
		t.Run(name, func(t *testing.T) {
			o := optionsWithCA(t, c.ca)
			c.change(o)
			_, err := Server(t.Context(), o, slog.New(slog.DiscardHandler))
			var wrong *usageError
			if err == nil || !strings.Contains(err.Error(), c.want) || !errors.As(err, &wrong) {
				t.Errorf("got %v; want %q as a wrong option", err, c.want)
			}
			if left, err := os.ReadDir(o.DataDir); err != nil || len(left) != 0 {
				t.Errorf("%d files are left in the data directory: %v", len(left), err)
			}
		})
	}
	var record pki.Bundle
	if record.External() {
		t.Error("no CA is an external one")
	}
}

// TestTheFormatOfAnOperatorsCA: an earlier version does not use the data directory of a server with
// an operator's CA, also after the encryption of its objects has changed. It may when the CA is a
// built-in one again.
func TestTheFormatOfAnOperatorsCA(t *testing.T) {
	o := optionsWithCA(t, companytest.NewRoot(t).Intermediate("Cluster CA", nil))
	r, err := Server(t.Context(), o, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	check := func(step string, file, memory int) {
		t.Helper()
		data, err := os.ReadFile(r.Path())
		var is struct {
			Format int `json:"format"`
		}
		if err := errors.Join(err, json.Unmarshal(data, &is)); err != nil {
			t.Fatal(err)
		}
		if r, err = Load(o.DataDir); err != nil {
			t.Fatal(err)
		}
		if is.Format != file || r.Format != memory {
			t.Errorf("%s: format %d, read as %d; want %d, %d", step, is.Format, r.Format, file, memory)
		}
	}
	check("begun", separateFormat, plainFormat)
	separate := r.CA()
	if !separate.External() || len(separate.Peers) != 1 || len(separate.FrontProxy) != 1 {
		t.Fatalf("a new cluster has the CAs %+v", separate)
	}
	one := separate
	one.Peers, one.FrontProxy = nil, nil
	if err := r.Believe(one); err != nil {
		t.Fatal(err)
	}
	check("one CA", externalFormat, plainFormat)
	for _, encrypts := range []bool{true, false, true} {
		if err := r.NoteEncryption(encrypts); err != nil {
			t.Fatal(err)
		}
		check("encryption", externalFormat, map[bool]int{true: encryptedFormat, false: plainFormat}[encrypts])
	}
	builtIn, err := pki.NewAuthority("c1", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Believe(pki.NewBundle(builtIn)); err != nil {
		t.Fatal(err)
	}
	check("a built-in CA", encryptedFormat, encryptedFormat)
	if err := r.NoteEncryption(false); err != nil {
		t.Fatal(err)
	}
	check("nothing encrypted", plainFormat, plainFormat)
	for _, encrypts := range []bool{true, false} {
		if err := errors.Join(r.Believe(separate), r.NoteEncryption(encrypts)); err != nil {
			t.Fatal(err)
		}
		check("separate", separateFormat, map[bool]int{true: encryptedFormat, false: plainFormat}[encrypts])
	}
}

// TestFlagsThatAreLeft: a server that has its cluster warns of the flags, with which an empty disk
// would begin another one.
func TestFlagsThatAreLeft(t *testing.T) {
	o := optionsWithCA(t, companytest.NewRoot(t).Intermediate("Cluster CA", nil))
	for i, want := range []bool{false, true} {
		var said bytes.Buffer
		if _, err := Server(t.Context(), o, slog.New(slog.NewTextHandler(&said, nil))); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(said.String(), "remove them") != want {
			t.Errorf("start %d: %s", i+1, said.String())
		}
	}
}
