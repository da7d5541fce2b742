package part

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"

	"aead.dev/minisign"

	"github.com/barque/barque/internal/await"
	"github.com/barque/barque/internal/version"
	"github.com/barque/barque/upgrade/release"
	"github.com/barque/barque/upgrade/versions"
)

const next = "v0.2.0"

// made is a release in memory.
type made struct {
	archive, sums, signature []byte
	name                     string
	keys                     release.Keys
}

// of makes a release whose program is a script that prints the output.
func of(t *testing.T, prints string) *made {
	t.Helper()
	script := "#!/bin/sh\necho '" + prints + "'\n"
	m := &made{name: release.ArchiveName(next, runtime.GOARCH)}
	var out bytes.Buffer
	zipped := gzip.NewWriter(&out)
	files := tar.NewWriter(zipped)
	err := files.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "barque-x/barque", Mode: 0o755,
		Size: int64(len(script))})
	if err == nil {
		_, err = files.Write([]byte(script))
	}
	if err := errors.Join(err, files.Close(), zipped.Close()); err != nil {
		t.Fatal(err)
	}
	m.archive = out.Bytes()
	m.sums = []byte(release.Digest(m.archive) + "  " + m.name + "\n")
	public, private, err := minisign.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	m.signature = minisign.Sign(private, m.sums)
	text, err := public.MarshalText()
	if err != nil {
		t.Fatal(err)
	}
	if m.keys, err = release.ParseKeys([]string{string(text)}); err != nil {
		t.Fatal(err)
	}
	return m
}

func good(t *testing.T) *made { return of(t, `{"version": "`+next+`", "storeFormat": 3}`) }

// server serves the files of an administrator's upload.
type server struct {
	*httptest.Server
	upload *Upload
	cut    int // requests of archives that are still to be cut in the middle
	mu     sync.Mutex
}

func newServer(t *testing.T, keys release.Keys) *server {
	s := &server{upload: &Upload{Self: "s1", Releases: ReleasesIn(t.TempDir()), Keys: keys}}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		cut := r.Method == http.MethodGet && s.cut > 0
		if cut {
			s.cut--
		}
		s.mu.Unlock()
		switch {
		case cut:
			s.upload.Releases.Serve(&cutter{w, 10}, r)
			panic(http.ErrAbortHandler)
		case r.Method == http.MethodGet:
			s.upload.Releases.Serve(w, r)
		default:
			s.upload.Files(w, r)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

// cutter passes a few bytes on.
type cutter struct {
	http.ResponseWriter
	left int
}

func (c *cutter) Write(p []byte) (int, error) {
	if c.left == 0 {
		return 0, io.ErrClosedPipe
	}
	n, err := c.ResponseWriter.Write(p[:min(len(p), c.left)])
	c.left -= n
	c.ResponseWriter.(http.Flusher).Flush()
	return n, err
}

// has gives the server a release.
func (s *server) has(t *testing.T, m *made, unsigned bool) {
	t.Helper()
	o := &Offer{Sums: m.sums, Signature: m.signature, Unsigned: unsigned, Names: []string{m.name}}
	if _, err := s.upload.Take(o); err != nil {
		t.Fatal(err)
	}
	if _, err := s.upload.Releases.Append(next, m.name, 0, bytes.NewReader(m.archive)); err != nil {
		t.Fatal(err)
	}
	if answer, err := s.upload.Take(o); err != nil || len(answer.Missing) > 0 {
		t.Fatalf("%+v: %v", answer, err)
	}
}

func newNode(t *testing.T, keys release.Keys) *Node {
	return NewNode(Config{Name: "a1", DataDir: t.TempDir(), Keys: keys, StoreFormat: 2,
		Client: func() *http.Client { return http.DefaultClient }, Again: func(string) {},
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
}

// order gives a node an order, and returns its answer.
func order(t *testing.T, n *Node, o *Order) (*Answer, int) {
	t.Helper()
	body, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	n.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, NodePath, bytes.NewReader(body)))
	a := new(Answer)
	if w.Code == http.StatusOK {
		err = json.Unmarshal(w.Body.Bytes(), a)
	}
	if err != nil {
		t.Fatal(err)
	}
	return a, w.Code
}

// prepare orders a program until it is there, or does not come.
func prepare(t *testing.T, n *Node, o *Order) (a *Answer) {
	t.Helper()
	o.Do, o.Version = Prepare, next
	await.True(t, "the end of an attempt", func() bool {
		a, _ = order(t, n, o)
		return a.Prepared != "" || a.Lasting
	})
	return a
}

// TestPrepare: a program comes over connections that are cut, and is put on trial.
func TestPrepare(t *testing.T) {
	m := good(t)
	s := newServer(t, m.keys)
	s.has(t, m, false)
	s.cut = 3
	n := newNode(t, m.keys)
	o := &Order{Sums: m.sums, Signature: m.signature, From: []string{s.URL + "/files"}}
	if a := prepare(t, n, o); a.Prepared != next || a.Sums != release.Digest(m.sums) {
		t.Fatalf("%+v", a)
	}
	if s.cut != 0 {
		t.Errorf("%d requests were not cut", s.cut)
	}
	a, code := order(t, n, &Order{Do: Try, Version: next, ReadySeconds: 60, ConfirmSeconds: 60})
	if code != http.StatusOK || !a.Stopping || a.Version != version.Version {
		t.Errorf("status %d: %+v", code, a)
	}
	if r, err := versions.In(n.DataDir).Read(); err != nil || r.Trial == nil || r.Trial.Version != next {
		t.Errorf("the record is %+v: %v", r, err)
	}
	if _, code := order(t, n, &Order{Do: Confirm, Version: next}); code != http.StatusConflict {
		t.Errorf("a version that does not run is confirmed: %d", code)
	}
}

// TestRefusedPrograms: a node runs nothing that its keys, or else those of the leader, do not
// believe, and nothing that is not of the version.
func TestRefusedPrograms(t *testing.T) {
	m, other := good(t), good(t)
	wrong := of(t, `{"version": "v0.3.0"}`)
	older := of(t, `{"version": "`+next+`", "storeFormat": 1}`)
	silent := of(t, "")
	for _, c := range []struct {
		name string
		made *made
		keys release.Keys
		edit func(*Order)
		want string // in the problem; empty is none
	}{
		{"signed", m, m.keys, func(*Order) {}, ""},
		{"by the leader's key", m, nil, func(o *Order) { o.Keys = m.keys.Texts() }, ""},
		{"by an administrator's word", m, nil, func(o *Order) { o.Unsigned, o.Signature = true, nil }, ""},
		{"no key and no word", m, nil, func(*Order) {}, "has no --release-key"},
		{"another key", m, other.keys, func(*Order) {}, "is signed by the key"},
		{"another key and the leader's", m, other.keys, func(o *Order) { o.Keys = m.keys.Texts() }, "is signed by the key"},
		{"a key and an administrator's word", m, m.keys, func(o *Order) { o.Unsigned, o.Signature = true, nil },
			"it has no SHA256SUMS.minisig"},
		{"a path as the leader's key", m, nil, func(o *Order) { o.Keys = []string{"/etc/passwd"} }, "the leader's release keys"},
		{"a wrong version", wrong, wrong.keys, func(*Order) {}, `is of version "v0.3.0"`},
		{"an older store", older, older.keys, func(*Order) {}, "reads the store up to format 1"},
		{"prints nothing", silent, silent.keys, func(*Order) {}, "does not print its version"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newServer(t, c.made.keys)
			s.has(t, c.made, false)
			n := newNode(t, c.keys)
			o := &Order{Sums: c.made.sums, Signature: c.made.signature, From: []string{s.URL}}
			c.edit(o)
			a := prepare(t, n, o)
			if (a.Prepared == next) != (c.want == "") || !strings.Contains(a.Problem, c.want) {
				t.Errorf("prepared %q, problem %q, want %q", a.Prepared, a.Problem, c.want)
			}
			if _, code := order(t, n, &Order{Do: Try, Version: next}); (code == http.StatusOK) != (c.want == "") {
				t.Errorf("an order to try it: %d", code)
			}
		})
	}
}

// TestUpload: a release is refused before its archives come, and comes in parts.
func TestUpload(t *testing.T) {
	m, other := good(t), good(t)
	s := newServer(t, m.keys)
	offer := func(o Offer) (answer Offered, code int) {
		body, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		r, err := http.Post(s.URL, "application/json", bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		if r.StatusCode == http.StatusOK {
			err = json.NewDecoder(r.Body).Decode(&answer)
		}
		if err != nil {
			t.Fatal(err)
		}
		return answer, r.StatusCode
	}
	if _, code := offer(Offer{Sums: m.sums, Unsigned: true, Names: []string{m.name}}); code != http.StatusForbidden {
		t.Errorf("a server with keys takes an unsigned release: %d", code)
	}
	if _, code := offer(Offer{Sums: other.sums, Signature: other.signature}); code != http.StatusForbidden {
		t.Errorf("a server takes a release of another key: %d", code)
	}
	o := Offer{Sums: m.sums, Signature: m.signature, Names: []string{m.name}}
	put := func(name, on string, offset int, part []byte) int {
		query := url.Values{"version": {next}, "name": {name}, "on": {on}, "offset": {fmt.Sprint(offset)}}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPut, s.URL+"?"+query.Encode(),
			bytes.NewReader(part))
		if err != nil {
			t.Fatal(err)
		}
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		return response.StatusCode
	}
	if answer, code := offer(o); code != http.StatusOK || len(answer.Missing) != 1 || answer.Server != "s1" {
		t.Errorf("%d: %+v", code, answer)
	}
	for _, c := range []struct {
		name, on string
		offset   int
		part     []byte
		want     int
	}{
		{m.name, "s2", 0, m.archive, http.StatusMisdirectedRequest},
		{"../../x", "s1", 0, m.archive, http.StatusBadRequest},
		{m.name, "s1", 0, m.archive[:20], http.StatusNoContent},
		{m.name, "s1", 30, m.archive[30:], http.StatusConflict},
		{m.name, "s1", 20, m.archive[20:], http.StatusNoContent},
	} {
		if code := put(c.name, c.on, c.offset, c.part); code != c.want {
			t.Errorf("%s on %s from %d: %d, want %d", c.name, c.on, c.offset, code, c.want)
		}
	}
	if answer, code := offer(o); code != http.StatusOK || len(answer.Missing) != 0 {
		t.Errorf("%d: %+v", code, answer)
	}
	if f, err := s.upload.Releases.Open(next, m.name); err != nil {
		t.Error(err)
	} else {
		f.Close()
	}
	if _, err := s.upload.Releases.Open("..", release.SumsFile); !errors.Is(err, ErrName) {
		t.Errorf("a path out of the folder: %v", err)
	}
}

// TestBring: a server gets a signed release from a URL, and no other.
func TestBring(t *testing.T) {
	m := good(t)
	files := map[string][]byte{release.SumsFile: m.sums, release.SignatureFile: m.signature, m.name: m.archive}
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		data, there := files[strings.TrimPrefix(r.URL.Path, "/v0.2.0/")]
		if !there {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write(data)
	}))
	defer web.Close()
	for name, keys := range map[string]release.Keys{"no key": nil, "another key": good(t).keys} {
		u := &Upload{Self: "s1", Releases: ReleasesIn(t.TempDir()), Keys: keys}
		if _, err := u.Bring(t.Context(), web.URL+"/v0.2.0", next); !errors.Is(err, release.ErrSignature) {
			t.Errorf("%s: %v", name, err)
		}
	}
	u := &Upload{Self: "s1", Releases: ReleasesIn(t.TempDir()), Keys: m.keys}
	if _, err := u.Bring(t.Context(), web.URL+"/v0.2.0/", next); err != nil {
		t.Fatal(err)
	}
	f, err := u.Releases.Open(next, m.name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if data, err := io.ReadAll(f); err != nil || !bytes.Equal(data, m.archive) {
		t.Errorf("%d bytes: %v", len(data), err)
	}
	if _, err := os.Stat(f.Name() + coming); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a part stays: %v", err)
	}
}
