package backup_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/backup"
	"github.com/barque/barque/raftstore/kv"
)

var secrets = map[string][]byte{"ca.key": []byte("the key of the CA"), "gossip": {0, 1, 2}}

// filled returns a store with n keys, some of which were changed, and some of which expire.
func filled(t testing.TB, n int, seed uint64) *raftstore.Store {
	t.Helper()
	s := raftstore.NewInMemory(raftstore.Options{})
	t.Cleanup(func() { s.Close() })
	rnd := rand.New(rand.NewPCG(seed, 0))
	for i := range n {
		op := raftstore.Op{Kind: raftstore.Put, Key: fmt.Sprintf("/registry/pods/ns%d/p%d", rnd.IntN(3), rnd.IntN(n)),
			Value: make([]byte, rnd.IntN(300))}
		for j := range op.Value {
			op.Value[j] = byte(rnd.Uint32())
		}
		switch {
		case i%7 == 0:
			op.TTL = time.Hour
		case i%5 == 0:
			op.Kind = raftstore.Delete
		}
		if _, err := s.Commit(t.Context(), raftstore.Txn{Ops: []raftstore.Op{op}}); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func view(t testing.TB, s *raftstore.Store) kv.View {
	t.Helper()
	v, err := s.View(context.Background(), raftstore.ViewOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func source(v kv.View) backup.Source {
	return backup.Source{View: v, Secrets: secrets, About: backup.About{
		ClusterID: "cluster", Server: "s1", Barque: "v0", Created: time.Unix(1_700_000_000, 5),
		Settings: json.RawMessage(`{"domain": "x"}`),
	}}
}

func encode(t testing.TB, v kv.View, key *backup.Key) []byte {
	t.Helper()
	var b bytes.Buffer
	if _, err := backup.Write(&b, source(v), key); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func parse(t testing.TB, text string) *backup.Key {
	t.Helper()
	key, err := backup.ParseKey(text)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// keys are one of each kind, and none.
func keys(t testing.TB) map[string]*backup.Key {
	secret, _, err := backup.GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	return map[string]*backup.Key{"no key": nil, "a secret key": parse(t, "# a comment\n"+secret+"\n"),
		"a passphrase": parse(t, "correct horse battery")}
}

// same checks that two stores have the same keys, values and times of expiry.
func same(t *testing.T, got, want kv.View) {
	t.Helper()
	if got.Count("", "") != want.Count("", "") {
		t.Errorf("%d keys, want %d", got.Count("", ""), want.Count("", ""))
	}
	want.Ascend("", "", func(item kv.Item) bool {
		other, ok := got.Get(item.Key)
		if !ok || !bytes.Equal(other.Value, item.Value) || other.Expires != item.Expires {
			t.Errorf("%s is %+v, want %+v", item.Key, other, item)
		}
		return !t.Failed()
	})
}

func TestSavedIsRestored(t *testing.T) {
	for name, key := range keys(t) {
		for _, n := range []int{0, 1, 40, 2500} { // the last one is several blocks
			if name == "a passphrase" && n != 40 {
				continue // it takes a quarter of a second and 64 MiB
			}
			v := view(t, filled(t, n, uint64(n)))
			data := encode(t, v, key)
			r, err := backup.NewReader(bytes.NewReader(data), key)
			if err != nil {
				t.Fatalf("%s, %d writes: %v", name, n, err)
			}
			other := filled(t, 30, 99)
			result, err := other.Restore(t.Context(), r.Items, raftstore.RestoreOptions{AtLeast: v.Revision() + 1000})
			if err != nil {
				t.Fatalf("%s, %d writes: %v", name, n, err)
			}
			if result.Revision < v.Revision()+1000 {
				t.Errorf("restored at revision %d, the backup is of %d", result.Revision, v.Revision())
			}
			same(t, view(t, other), v)
			if key != nil && !bytes.Equal(r.Secrets()["ca.key"], secrets["ca.key"]) {
				t.Errorf("%s: secrets %q", name, r.Secrets())
			}
			about := r.About()
			if about.Revision != v.Revision() || about.ClusterID != "cluster" || about.Sealed != (key != nil) ||
				about.Secrets != (key != nil) {
				t.Errorf("%s: it says %+v", name, about)
			}
		}
	}
}

func TestSecretsAreNeverInClear(t *testing.T) {
	s := filled(t, 5, 1)
	if _, err := s.Commit(t.Context(),
		raftstore.Txn{
			Ops: []raftstore.Op{
				{Kind: raftstore.Put, Key: "/registry/secrets/a",
					Value: []byte("an application's secret")}}}); err != nil {
		t.Fatal(err)
	}
	for name, key := range keys(t) {
		data := encode(t, view(t, s), key)
		if bytes.Contains(data, secrets["ca.key"]) {
			t.Errorf("%s: the key of the CA is in clear", name)
		}
		if key != nil && bytes.Contains(data, []byte("registry")) {
			t.Errorf("%s: the state is in clear", name)
		}
		r, err := backup.NewReader(bytes.NewReader(data), key)
		if err != nil || (len(r.Secrets()) > 0) != (key != nil) {
			t.Errorf("%s: secrets %q, %v", name, r.Secrets(), err)
		}
	}
}

func TestEveryFlippedByteIsFound(t *testing.T) {
	v := view(t, filled(t, 4, 3))
	for name, key := range keys(t) {
		if name == "a passphrase" {
			continue // a quarter of a second for each byte; the format is that of the secret key
		}
		good := encode(t, v, key)
		for i := range good {
			bad := bytes.Clone(good)
			bad[i] ^= 1 << (i % 8)
			for _, k := range []*backup.Key{key, nil} {
				if _, err := backup.Verify(bytes.NewReader(bad), k, nil); !errors.Is(err, backup.ErrCorrupt) &&
					!errors.Is(err, backup.ErrVersion) {
					t.Fatalf("%s: a flipped bit in byte %d of %d: %v", name, i, len(good), err)
				}
			}
			if _, err := backup.Verify(bytes.NewReader(good[:i]), key, nil); !errors.Is(err, backup.ErrCorrupt) {
				t.Fatalf("%s: cut after byte %d of %d: %v", name, i, len(good), err)
			}
		}
		if _, err := backup.Verify(bytes.NewReader(append(bytes.Clone(good), 0)), key, nil); !errors.Is(err,
			backup.ErrCorrupt) {
			t.Errorf("%s: something follows the end: %v", name, err)
		}
	}
}

// TestDamageHasAPlace flips a byte in the third block of several.
func TestDamageHasAPlace(t *testing.T) {
	data := encode(t, view(t, filled(t, 5000, 4)), nil)
	at := 12
	for range 2 { // skip two blocks
		at += 9 + int(uint32(data[at+1])|uint32(data[at+2])<<8|uint32(data[at+3])<<16)
	}
	data[at+100] ^= 1
	_, err := backup.Verify(bytes.NewReader(data), nil, nil)
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("block 3, at byte %d", at)) {
		t.Errorf("damage in block 3 at byte %d: %v", at, err)
	}
}

func TestKeys(t *testing.T) {
	v := view(t, filled(t, 20, 5))
	secret, public, err := backup.GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	sealed := encode(t, v, parse(t, public))
	for what, c := range map[string]struct {
		key  *backup.Key
		want error
	}{
		"no key": {nil, backup.ErrKey}, "the public key": {parse(t, public), backup.ErrKey},
		"another passphrase": {parse(t, "something else"), backup.ErrKey},
		"the secret key":     {parse(t, secret), nil}, "another secret key": {keys(t)["a secret key"], backup.ErrKey},
	} {
		if _, err := backup.NewReader(bytes.NewReader(sealed), c.key); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", what, err, c.want)
		}
	}
	if _, err := backup.NewReader(bytes.NewReader(encode(t, v, parse(t, "one passphrase"))),
		parse(t, "two passphrases")); !errors.Is(err, backup.ErrKey) {
		t.Errorf("a wrong passphrase: %v", err)
	}
	for what, key := range map[string]*backup.Key{"a secret key": parse(t, secret), "a public key": parse(t, public)} {
		if _, err := backup.NewReader(bytes.NewReader(encode(t, v, nil)), key); !errors.Is(err, backup.ErrKey) ||
			!strings.Contains(err.Error(), "not sealed") {
			t.Errorf("%s for a file that is not sealed: %v", what, err)
		}
	}
	for _, text := range []string{"", "\n# only a comment\n", "short", "two\nlines", secret[:40], public[:30]} {
		if _, err := backup.ParseKey(text); err == nil {
			t.Errorf("%q was taken for a key", text)
		}
	}
	report, err := backup.Verify(bytes.NewReader(sealed), nil, nil)
	if err != nil || report.Verified || report.About.Revision != v.Revision() {
		t.Errorf("without the key: %+v, %v", report, err)
	}
	report, err = backup.Verify(bytes.NewReader(sealed), parse(t, secret), nil)
	if err != nil || !report.Verified || !slices.Equal(report.SecretNames, []string{"ca.key", "gossip"}) ||
		len(report.Kinds) != 1 || report.Kinds[0].Prefix != "/registry/pods" ||
		int(report.Kinds[0].Keys) != v.Count("", "") {
		t.Errorf("with the key: %+v, %v", report, err)
	}
}

// TestForgedAbout exchanges the clear header of a sealed backup, with right checksums.
func TestForgedAbout(t *testing.T) {
	v := view(t, filled(t, 3, 6))
	key := keys(t)["a secret key"]
	src := source(v)
	var one, two bytes.Buffer
	if _, err := backup.Write(&one, src, key); err != nil {
		t.Fatal(err)
	}
	src.About.ClusterID = "another"
	if _, err := backup.Write(&two, src, key); err != nil {
		t.Fatal(err)
	}
	if _, err := backup.NewReader(bytes.NewReader(one.Bytes()), key); err != nil {
		t.Fatal(err)
	}
	end := func(b []byte) int { return 12 + 9 + int(uint32(b[13])|uint32(b[14])<<8) }
	forged := slices.Concat(two.Bytes()[:end(two.Bytes())], one.Bytes()[end(one.Bytes()):])
	if _, err := backup.NewReader(bytes.NewReader(forged), key); !errors.Is(err, backup.ErrCorrupt) {
		t.Errorf("a forged head: %v", err)
	}
}

func TestDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	if files, err := backup.List(dir); err != nil || len(files) != 0 {
		t.Fatalf("%v, %v", files, err)
	}
	v := view(t, filled(t, 20, 7))
	save := func(day int) {
		src := source(v)
		src.About.Created = time.Date(2026, 1, day, 0, 0, 0, 0, time.UTC)
		file, err := backup.SaveIn(dir, nil,
			func(w io.Writer) error { _, err := backup.Write(w, src, nil); return err })
		info, stat := os.Stat(file.Path)
		if err != nil || stat != nil || info.Size() != file.Size || info.Mode().Perm() != 0o600 ||
			file.Name != backup.FileName(file.About) {
			t.Fatalf("%+v, %v, %v", file, err, stat)
		}
	}
	for _, day := range []int{9, 10, 2} {
		save(day)
	}
	broken := errors.New("no space left")
	if _, err := backup.Save(filepath.Join(dir, "barque-x.backup"), nil,
		func(w io.Writer) error { w.Write([]byte("half")); return broken }); !errors.Is(err, broken) {
		t.Errorf("a failed one: %v", err)
	}
	if _, err := backup.Save(filepath.Join(dir, "barque-x.backup"), nil,
		func(w io.Writer) error { _, err := w.Write([]byte("nonsense")); return err }); !errors.Is(err,
		backup.ErrCorrupt) {
		t.Errorf("one that does not read back: %v", err)
	}
	for _, name := range []string{"barque-next-123.unfinished", "of-the-operator"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	age(t, dir)
	files, err := backup.List(dir)
	if err != nil || len(files) != 3 || !strings.Contains(files[0].Name, "20260102") ||
		!strings.Contains(files[2].Name, "20260110") || files[0].Problem != "" {
		t.Fatalf("%+v, %v", files, err)
	}
	// A name that people gave: it is shown, in its place, and stays.
	given := filepath.Join(dir, "before-restore.backup")
	if err := os.Rename(files[0].Path, given); err != nil {
		t.Fatal(err)
	}
	if files, err = backup.List(dir); err != nil || len(files) != 3 || files[0].Path != given {
		t.Fatalf("with a name of its own: %+v, %v", files, err)
	}
	save(2)
	if files, err = backup.List(dir); err != nil || len(files) != 4 {
		t.Fatalf("%+v, %v", files, err)
	}
	files = slices.Delete(files, 0, 1)
	damaged, err := os.OpenFile(files[1].Path, os.O_WRONLY, 0)
	if err == nil {
		_, err = damaged.WriteAt([]byte{0xff}, 300)
		err = errors.Join(err, damaged.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	if files, err = backup.List(dir); err != nil || !strings.Contains(files[2].Problem, "block") {
		t.Errorf("a damaged one: %+v, %v", files, err)
	}
	if err := backup.Prune(dir, files[2].Name, 2); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(dir)
	var names []string
	for _, e := range left {
		names = append(names, e.Name())
	}
	if err != nil || len(names) != 4 || !slices.Contains(names, "of-the-operator") ||
		!slices.Contains(names, "before-restore.backup") || strings.Contains(strings.Join(names, " "), "20260102") {
		t.Errorf("left: %v, %v", names, err)
	}
}

// TestSavedAtTheSameTime: backups of the same moment into the same directory do not disturb each
// other, nor does Prune.
func TestSavedAtTheSameTime(t *testing.T) {
	dir := t.TempDir()
	v := view(t, filled(t, 20, 7))
	src := source(v)
	var saving sync.WaitGroup
	writing := make(chan struct{}, 8)
	begin := make(chan struct{})
	for range cap(writing) {
		saving.Go(func() {
			_, err := backup.SaveIn(dir, nil, func(w io.Writer) error {
				writing <- struct{}{}
				<-begin
				_, err := backup.Write(w, src, nil)
				return err
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	for range cap(writing) {
		<-writing
	}
	if err := backup.Prune(dir, "", 1); err != nil {
		t.Error(err)
	}
	close(begin)
	saving.Wait()
	files, err := backup.List(dir)
	if err != nil || len(files) != cap(writing) {
		t.Errorf("%d of %d were kept: %v", len(files), cap(writing), err)
	}
	for _, f := range files {
		if f.Problem != "" {
			t.Errorf("%s: %s", f.Name, f.Problem)
		}
	}
}

func FuzzReader(f *testing.F) {
	v := view(f, filled(f, 3, 8))
	f.Add(encode(f, v, nil))
	f.Add([]byte("BARQBKUP\x01\x00\x00\x00\x01\xff\xff\x3f\x00\x00\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, data []byte) { backup.Verify(bytes.NewReader(data), nil, nil) })
}
