package revocations

import (
	"bytes"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/barque/barque/membership/revocation"
	"github.com/barque/barque/pki"
)

// TestFilesOfCertificates: a certificate is taken from PEM, and from a kubeconfig that has it or
// names its file. A CA is refused, in either.
func TestFilesOfCertificates(t *testing.T) {
	ca, err := pki.NewAuthority("c1", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	key, err := pki.GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	text, err := pki.TrustOf(ca).Issue(
		pki.Request{CommonName: "barque:admin", Organization: []string{"system:masters"}, Usage: pki.Client},
		key.Public(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.Certificate().Raw})
	kubeconfig := func(user string) []byte {
		return fmt.Appendf(nil,
			`{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"user":"u","cluster":"k"}}],
			"clusters":[{"name":"k","cluster":{"server":"https://10.0.0.1:6443","certificate-authority-data":%q}}],"users":[{"name":"u","user":{%s}}]}`, base64.StdEncoding.EncodeToString(authority), user)
	}
	dir := t.TempDir()
	files := map[string][]byte{"user.crt": text, "ca.crt": authority,
		"with.kubeconfig":  kubeconfig(`"client-certificate-data":"` + base64.StdEncoding.EncodeToString(text) + `"`),
		"names.kubeconfig": kubeconfig(`"client-certificate":"user.crt"`),
		"token.kubeconfig": kubeconfig(`"token":"x"`),
		"gone.kubeconfig":  kubeconfig(`"client-certificate":"nobody.crt"`),
		"of-ca.kubeconfig": kubeconfig(`"client-certificate":"ca.crt"`),
		"none.yaml":        []byte("a: b"),
	}
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]string{"user.crt": "", "with.kubeconfig": "", "names.kubeconfig": "",
		"ca.crt": "exchanged", "of-ca.kubeconfig": "exchanged",
		"token.kubeconfig": "no PEM block", "gone.kubeconfig": "nobody.crt: no such file",
		"none.yaml": "no PEM block"} {
		order, err := orderOf(new(cobra.Command), filepath.Join(dir, name), "")
		if want != "" {
			if err == nil || !strings.Contains(err.Error(), want) ||
				errors.Is(err, revocation.ErrCA) != (want == "exchanged") {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if err != nil || order.Name != "barque:admin" || order.Check() != nil {
			t.Errorf("%s: %+v, %v", name, order, err)
		}
	}
	input := new(cobra.Command)
	input.SetIn(bytes.NewReader(files["with.kubeconfig"]))
	if order, err := orderOf(input, "-", ""); err != nil || order.Name != "barque:admin" {
		t.Errorf("the input: %+v, %v", order, err)
	}
}

// TestTheNextStep: who revokes a certificate in use hears the command that mends it.
func TestTheNextStep(t *testing.T) {
	for want, made := range map[string]revocation.Made{
		"": {},
		"admin.kubeconfig of server s3 has this certificate: `barque cert rotate --server s3`": {Node: "s3",
			Role: pki.RoleServer, Use: "admin"},
		"in use (peer): `barque cert rotate --server s2`": {Node: "s2",
			Role: pki.RoleServer, Use: "peer"},
		"`barque cert readmit a1`": {Node: "a1",
			Role: pki.RoleAgent, Use: "api-client"},
	} {
		if got := nextStep(made); (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%+v: %q", made, got)
		}
	}
	var out strings.Builder
	if err := writeRevoked(&out, revocation.Entry{Kind: revocation.Certificate, ID: "0a"}); err != nil ||
		out.String() != "certificate 0a is revoked\n" {
		t.Errorf("a certificate of nobody known: %q, %v", out.String(), err)
	}
}
