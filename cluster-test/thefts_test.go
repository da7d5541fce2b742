package clustertest

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/internal/needs"
	"github.com/barque/barque/pki"
	"github.com/barque/barque/raftstore/backup"
	"github.com/barque/barque/raftstore/kv"
	"github.com/barque/barque/raftstore/snapshot"
)

// A thief has a copy of a server's store without its keys, of an agent's whole disk, or of a
// backup. TestThefts searches them for the secrets that docs/security.md and docs/encryption.md
// rule out, and tries each credential that it finds at each door.
func TestThefts(t *testing.T) {
	needs.AllTests(t)
	images, err := testRegistry()
	if err != nil {
		t.Fatal(err)
	}
	c := Start(t, Options{Servers: 1, Agents: 1, Registry: images})
	v := newVault(t, c)
	t.Run("TheStoreOfAServer", v.store)
	t.Run("TheDiskOfAnAgent", v.agentsDisk)
	t.Run("ABackup", v.unsealedBackup)
	t.Run("ASealedBackup", v.sealedBackup)
	t.Run("TheWholeServer", v.wholeServer)
}

// vault has the secrets that a thief would like to find.
type vault struct {
	*building
	secrets map[string][]byte // values of Secrets, tokens and keys that the cluster keeps to itself
	shown   string            // value of a Secret that a pod of the agent has
	open    string            // value of a ConfigMap, which is in clear
}

func newVault(t *testing.T, c *Cluster) *vault {
	t.Helper()
	b := newBuilding(t, c)
	v := &vault{building: b, secrets: map[string][]byte{}, shown: "the-great-mogul-is-shown",
		open: "paste-and-glass-is-in-clear"}
	secret := func(name, value string) {
		b.K("create", "secret", "generic", name, "--from-literal=jewel="+value)
	}
	for name, value := range map[string]string{"kept": "the-orlov-is-kept", "changed": "the-regent-was-changed",
		"deleted": "the-sancy-was-deleted"} {
		secret(name, value)
		v.secrets["the Secret "+name] = []byte(value)
	}
	b.K("patch", "secret", "changed", "-p", `{"stringData":{"jewel":"glass"}}`)
	b.K("delete", "secret", "deleted")
	secret("shown", v.shown)
	b.K("create", "configmap", "open", "--from-literal=stone="+v.open)
	for _, role := range []string{"server", "agent"} {
		token, err := pki.ParseToken(strings.TrimSpace(b.Barque(t, "token", "create", "--role", role)))
		if err != nil {
			t.Fatal(err)
		}
		v.secrets["the join token of a "+role] = []byte(token.Secret)
	}
	v.secrets["the token of an account"] = []byte(v.tokenInSecret(t))
	v.addKeys(t)
	b.Apply(`
apiVersion: v1
kind: Pod
metadata: {name: shows}
spec:
  nodeName: a1
  containers: [{name: c, image: "busybox:1.36", command: [sleep, "1000000"], volumeMounts: [{name: s, mountPath: /s}]}]
  volumes: [{name: s, secret: {secretName: shown}}]
`)
	b.WaitReady("shows")
	return v
}

// tokenInSecret makes a token that does not end, and returns it without its readable parts.
func (v *vault) tokenInSecret(t *testing.T) string {
	t.Helper()
	secrets := v.Client.CoreV1().Secrets(v.Namespace)
	_, err := secrets.Create(t.Context(),
		&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: "lasting",
				Annotations: map[string]string{corev1.ServiceAccountNameKey: "default"}},
			Type: corev1.SecretTypeServiceAccountToken}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var token string
	Eventually(t, deadline, "the token in the Secret", func(ctx context.Context) error {
		s, err := secrets.Get(ctx, "lasting", metav1.GetOptions{})
		if err == nil && len(s.Data[corev1.ServiceAccountTokenKey]) == 0 {
			err = errors.New("it has none")
		}
		if err == nil {
			token = string(s.Data[corev1.ServiceAccountTokenKey])
		}
		return err
	})
	return token[strings.LastIndexByte(token, '.')+1:]
}

// addKeys adds the keys of the server's directory, as the numbers that they are, and those of
// gossip.
func (v *vault) addKeys(t *testing.T) {
	t.Helper()
	dir := filepath.Join(v.DataDir("s1"), "pki")
	for _, name := range []string{"ca.key", "service-account.key", "peers-ca.key", "front-proxy-ca.key"} {
		key, err := pki.ParseKey(read(t, filepath.Join(dir, name)))
		if err != nil {
			t.Fatal(err)
		}
		number, err := key.(*ecdsa.PrivateKey).Bytes()
		if err != nil {
			t.Fatal(err)
		}
		v.secrets["the key in "+name] = number
	}
}

// gossipKeys are in the record of each node, and in no copy of the store.
func (v *vault) gossipKeys(t *testing.T) map[string][]byte {
	t.Helper()
	var record struct{ Cluster struct{ GossipKeys [][]byte } }
	if err := json.Unmarshal(read(t, filepath.Join(v.DataDir("s1"), "node.json")), &record); err != nil ||
		len(record.Cluster.GossipKeys) == 0 {
		t.Fatalf("the record has %d keys of gossip (%v)", len(record.Cluster.GossipKeys), err)
	}
	out := map[string][]byte{}
	for i, key := range record.Cluster.GossipKeys {
		out[fmt.Sprintf("gossip key %d", i)] = key
	}
	return out
}

// loot is a thief's copy, by the name of the file. A text is there as it lies, and without line
// breaks, which PEM has within a key.
type loot map[string][]byte

func (l loot) add(name string, data []byte) {
	l[name] = data
	if len(data) > longestText {
		return
	}
	l[name+", without line breaks"] = bytes.ReplaceAll(bytes.ReplaceAll(data, []byte("\n"), nil), []byte(`\n`), nil)
}

// forms are those in which a value may lie in a file: as it is, in hexadecimal, and in base64 at
// each of the three places at which it may begin within a longer text.
func forms(value []byte) [][]byte {
	out := [][]byte{value, []byte(hex.EncodeToString(value))}
	for skip := range 3 {
		text := base64.StdEncoding.EncodeToString(append(make([]byte, skip), value...))
		begin, end := []int{0, 2, 3}[skip], len(text)-4 // the first and last characters depend on the neighbours
		out = append(out, []byte(text[begin:end]))
	}
	return out
}

// holds returns the files that have a value in some form.
func (l loot) holds(value []byte) (files []string) {
	all := forms(value)
	for name, data := range l {
		if slices.ContainsFunc(all, func(form []byte) bool { return bytes.Contains(data, form) }) {
			files = append(files, name)
		}
	}
	return files
}

// largest bounds the files that are searched: larger ones are layers of images. longestText bounds
// those that may have a key in PEM.
const largest, longestText = 64 << 20, 1 << 20

// stolen copies the files below a directory into memory.
func stolen(t *testing.T, dir string) loot {
	t.Helper()
	l := loot{}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return nil // it went away meanwhile, or is no file
		}
		if info, err := entry.Info(); err != nil || info.Size() > largest || info.Mode()&0o111 != 0 {
			return nil
		}
		if data, err := os.ReadFile(path); err == nil {
			l.add(strings.TrimPrefix(path, dir), data)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// lacks fails when the loot has something that it must not have.
func (l loot) lacks(t *testing.T, secrets map[string][]byte) {
	t.Helper()
	for what, value := range secrets {
		if files := l.holds(value); len(files) > 0 {
			t.Errorf("%s is in %q", what, files)
		}
	}
}

var (
	jwtForm       = regexp.MustCompile(`eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}`)
	joinTokenForm = regexp.MustCompile(`b[12]\.[0-9a-f]{64}\.[a-z0-9]{6}\.[a-z0-9]{16,26}`)
)

// credentials are those in the loot: certificates with their keys, bearer tokens and join tokens.
func (l loot) credentials() (certs map[string]*tls.Certificate, bearers, joins map[string]string) {
	certs, bearers, joins = map[string]*tls.Certificate{}, map[string]string{}, map[string]string{}
	keys, chains := map[string]crypto.Signer{}, map[string]*x509.Certificate{}
	for name, data := range l {
		for _, token := range jwtForm.FindAllString(string(data), -1) {
			bearers[token] = name
		}
		for _, token := range joinTokenForm.FindAllString(string(data), -1) {
			joins[token] = name
		}
		for rest := data; ; {
			var block *pem.Block
			if block, rest = pem.Decode(rest); block == nil {
				break
			}
			if cert, err := x509.ParseCertificate(block.Bytes); err == nil {
				chains[name+" "+cert.SerialNumber.String()] = cert
			} else if key, err := pki.ParseKey(pem.EncodeToMemory(block)); err == nil {
				keys[name] = key
			}
		}
	}
	for of, key := range keys {
		for name, cert := range chains {
			if same, ok := key.Public().(interface{ Equal(crypto.PublicKey) bool }); ok && same.Equal(cert.PublicKey) {
				certs[name+" with the key of "+of] = &tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key,
					Leaf: cert}
			}
		}
	}
	return certs, bearers, joins
}

// store: a copy of a server's store without the keys beside it.
func (v *vault) store(t *testing.T) {
	// The log has every write, also those whose objects are gone; a snapshot is packed.
	dir := filepath.Join(v.DataDir("s1"), "store")
	l := stolen(t, dir)
	for name, data := range stolen(t, dir) {
		if reader, err := snapshot.NewReader(bytes.NewReader(data)); err == nil {
			unpacked := new(bytes.Buffer)
			if err := reader.Items(
				func(item *kv.Item) { fmt.Fprintf(unpacked, "%s %s\n", item.Key, item.Value) }); err == nil {
				l.add(name+", unpacked", unpacked.Bytes())
			}
			reader.Close()
		}
	}
	v.holdsNoKeys(t, l)
}

// holdsNoKeys: a copy of the state, in whatever form, has nothing that opens anything.
func (v *vault) holdsNoKeys(t *testing.T, l loot) {
	t.Helper()
	if len(l.holds([]byte(v.open))) == 0 {
		t.Fatal("what is in clear is not found: the search finds nothing")
	}
	l.lacks(t, v.secrets)
	l.lacks(t, v.gossipKeys(t))
	l.lacks(t, map[string][]byte{"a Secret that a pod has": []byte(v.shown)})
	certs, bearers, joins := l.credentials()
	if len(certs)+len(bearers)+len(joins) > 0 {
		t.Errorf("there are credentials: %d certificates with keys, tokens in %v, join tokens in %v", len(certs),
			bearers, joins)
	}
	for name, data := range l {
		if bytes.Contains(data, []byte("PRIVATE KEY-----")) {
			t.Errorf("%s has a private key", name)
		}
	}
}

// agentsDisk: it has the secrets of its pods, and its own certificates. Each credential on it
// is tried.
func (v *vault) agentsDisk(t *testing.T) {
	l := stolen(t, v.DataDir("a1"))
	l.lacks(t, v.secrets)
	certs, bearers, joins := l.credentials()
	if len(certs) == 0 {
		t.Fatal("there is not even the agent's own certificate: the search finds nothing")
	}
	agent := readDoors(t)["agent"]
	for what, cert := range certs {
		t.Logf("a certificate of %v, %s", cert.Leaf.Subject, what)
		for door, knock := range doors {
			answer, err := knock(v.building, cert)
			if err != nil || answer == yes && agent[door] != yes {
				t.Errorf("%s with %s: %s (%v)", door, what, answer, err)
			}
		}
	}
	for token, name := range bearers {
		t.Logf("a bearer token in %s", name)
		cert := &tls.Certificate{}
		v.tokens = map[*tls.Certificate]string{cert: token}
		for _, door := range []string{"API: Secrets", "API: Nodes", "kubelet"} {
			if answer, err := doors[door](v.building, cert); err != nil || answer == yes {
				t.Errorf("%s with the token in %s: %s (%v)", door, name, answer, err)
			}
		}
	}
	for token, name := range joins {
		t.Errorf("the join token %.12s… is in %s", token[67:], name)
	}
}

// unsealedBackup has all objects, and nothing that opens the Secrets.
func (v *vault) unsealedBackup(t *testing.T) {
	file := filepath.Join(t.TempDir(), "open.backup")
	v.Barque(t, "snapshot", "save", "--unsealed", file)
	reader, err := backup.NewReader(bytes.NewReader(read(t, file)), nil)
	if err != nil {
		t.Fatal(err)
	}
	l, unpacked := loot{}, new(bytes.Buffer)
	if err := reader.Items(func(item *kv.Item) error {
		_, err := fmt.Fprintf(unpacked, "%s %s\n", item.Key, item.Value)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	l.add("the backup", read(t, file))
	l.add("the backup, unpacked", unpacked.Bytes())
	if n := len(reader.Secrets()); n > 0 {
		t.Errorf("it has %d keys of the cluster", n)
	}
	v.holdsNoKeys(t, l)
}

// sealedBackup has nothing without its key. With it, it has the Secrets' keys, too.
func (v *vault) sealedBackup(t *testing.T) {
	file, keyFile := v.saveBackup(t)
	data := read(t, file)
	l := loot{}
	l.add("the backup", data)
	l.lacks(t, v.secrets)
	l.lacks(t, v.gossipKeys(t))
	l.lacks(t,
		map[string][]byte{"a Secret that a pod has": []byte(v.shown), "a ConfigMap": []byte(v.open),
			"a key of the store": []byte("/registry/"), "the name of a key": []byte("ca.key")})
	other, err := backup.ParseKey(v.Barque(t, "snapshot", "key"))
	if err != nil {
		t.Fatal(err)
	}
	for what, key := range map[string]*backup.Key{"no key": nil, "another key": other} {
		if _, err := backup.NewReader(bytes.NewReader(data), key); !errors.Is(err, backup.ErrKey) {
			t.Errorf("with %s: %v", what, err)
		}
	}
	if r := v.BarqueResult(t.Context(), "snapshot", "restore", file, "--yes"); r.Error == nil ||
		!contains(r.Err, "is sealed") {
		t.Errorf("restored without a key: %s%s", r.Out, r.Err)
	}
	key, err := backup.ParseKey(string(read(t, keyFile)))
	if err != nil {
		t.Fatal(err)
	}
	reader, err := backup.NewReader(bytes.NewReader(data), key)
	if err != nil || len(reader.Secrets()["ca.key"]) == 0 {
		t.Errorf("with its key it has no key of the CA (%v)", err)
	}
}

// wholeServer: with its keys a server's disk has all of it, as the page says. So the searches above
// find the secrets that are there.
func (v *vault) wholeServer(t *testing.T) {
	l := stolen(t, v.DataDir("s1"))
	for what, value := range v.secrets {
		if found := len(l.holds(value)) > 0; found != strings.HasPrefix(what, "the key in ") {
			t.Errorf("%s: found is %v", what, found)
		}
	}
	for what, value := range v.gossipKeys(t) {
		if len(l.holds(value)) == 0 {
			t.Errorf("%s is not found", what)
		}
	}
}
