package source

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	ocireg "github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// repository serves an index and archives, and counts requests with credentials by path.
func repository(t *testing.T, index string, tls bool) (*httptest.Server, map[string]int) {
	t.Helper()
	asked := map[string]int{}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		asked[r.URL.Path+" "+user+":"+password]++
		switch {
		case strings.HasSuffix(r.URL.Path, "/index.yaml"):
			fmt.Fprint(w, index)
		case strings.HasSuffix(r.URL.Path, ".tgz"):
			fmt.Fprint(w, "archive "+r.URL.Path)
		default:
			http.NotFound(w, r)
		}
	})
	s := httptest.NewUnstartedServer(handler)
	if tls {
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	return s, asked
}

const index = `apiVersion: v1
entries:
  another:
  - version: 7.0.0
    urls: [another.tgz]
  "app":
  - name: app
    version: 1.2.0
    description: |
      entries:
        app:
    urls: [charts/app-1.2.0.tgz]
  - name: app
    version: 1.10.0
    urls:
    - app-1.10.0.tgz
  - {name: app, version: 2.0.0-rc.1, urls: [app-2.0.0-rc.1.tgz]}
generated: "2026-11-30T00:00:00Z"
`

func fetch(t *testing.T, f *Fetcher, c Chart) (string, error) {
	t.Helper()
	data, err := f.Fetch(t.Context(), c)
	return string(data), err
}

func TestRepository(t *testing.T) {
	s, asked := repository(t, index, false)
	for name, c := range map[string]struct{ version, want string }{
		"the newest stable one": {"", "archive /x/app-1.10.0.tgz"},
		"a version":             {"1.2.0", "archive /x/charts/app-1.2.0.tgz"},
		"a range":               {"~1.2", "archive /x/charts/app-1.2.0.tgz"},
		"one before a release":  {"2.0.0-rc.1", "archive /x/app-2.0.0-rc.1.tgz"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := fetch(t, &Fetcher{}, Chart{Chart: "app", Repo: s.URL + "/x/", Version: c.version})
			if err != nil || got != c.want {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
	for what, c := range map[string]struct {
		chart Chart
		want  string
	}{
		"a version": {Chart{Chart: "app", Repo: s.URL, Version: "9"}, "no chart app of version"},
		"a chart":   {Chart{Chart: "none", Repo: s.URL}, "no chart none"},
		"a place":   {Chart{Chart: "none"}, "give its repository in repo"},
		"a page":    {Chart{Chart: s.URL + "/none"}, "404"},
	} {
		t.Run("without "+what, func(t *testing.T) {
			if _, err := fetch(t, &Fetcher{}, c.chart); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
	t.Run("it is fetched once", func(t *testing.T) {
		clear(asked)
		now := time.Unix(0, 0)
		f := &Fetcher{Now: func() time.Time { return now }}
		c := Chart{Chart: "app", Repo: s.URL}
		for range 3 {
			if _, err := fetch(t, f, c); err != nil {
				t.Fatal(err)
			}
		}
		if n := asked["/app-1.10.0.tgz :"]; n != 1 {
			t.Errorf("it was fetched %d times", n)
		}
		c.Password = "another user's"
		if _, err := fetch(t, f, c); err != nil || asked["/app-1.10.0.tgz :"] != 2 {
			t.Errorf("another user gets it from the cache, or %v", err)
		}
		now = now.Add(cacheTime + 1)
		if f.Trim(); len(f.cached) > 0 {
			t.Error("old archives are kept")
		}
	})
}

func TestCredentialsStayAtTheirHost(t *testing.T) {
	other, askedOther := repository(t, "", false)
	s, asked := repository(t, "entries:\n  app:\n  - version: 1.0.0\n    urls: ["+other.URL+"/app.tgz]\n", false)
	c := Chart{Chart: "app", Repo: s.URL, Username: "u", Password: "p"}
	if _, err := fetch(t, &Fetcher{}, c); err != nil {
		t.Fatal(err)
	}
	if asked["/index.yaml u:p"] != 1 || askedOther["/app.tgz :"] != 1 {
		t.Errorf("asked were %v and %v", asked, askedOther)
	}
	c.PassCredentials = true
	if _, err := fetch(t, &Fetcher{}, c); err != nil || askedOther["/app.tgz u:p"] != 1 {
		t.Errorf("asked were %v, %v", askedOther, err)
	}
}

func TestTLS(t *testing.T) {
	s, _ := repository(t, index, true)
	c := Chart{Chart: "app", Repo: s.URL}
	if _, err := fetch(t, &Fetcher{}, c); err == nil {
		t.Error("an unknown CA is believed")
	}
	c.CA = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	if _, err := fetch(t, &Fetcher{}, c); err != nil {
		t.Error(err)
	}
	c.CA, c.Insecure = nil, true
	if _, err := fetch(t, &Fetcher{}, c); err != nil {
		t.Error(err)
	}
	c.CA = []byte("none")
	if _, err := fetch(t, &Fetcher{}, c); err == nil || !strings.Contains(err.Error(), "no certificate") {
		t.Errorf("got %v", err)
	}
}

func TestDigestOfTheIndex(t *testing.T) {
	sum := sha256.Sum256([]byte("archive /app.tgz"))
	for digest, good := range map[string]bool{hex.EncodeToString(sum[:]): true, strings.Repeat("0", 64): false} {
		s, _ := repository(t,
			"entries:\n  app:\n  - version: 1.0.0\n    digest: "+digest+"\n    urls: [app.tgz]\n", false)
		if _, err := fetch(t, &Fetcher{}, Chart{Chart: "app", Repo: s.URL}); (err == nil) != good {
			t.Errorf("digest %s: %v", digest, err)
		}
	}
}

// TestIndexes: other forms of an index, and one of many charts of which one is parsed.
func TestIndexes(t *testing.T) {
	var large bytes.Buffer
	large.WriteString("apiVersion: v1\nentries:\n")
	for i := range 100_000 {
		fmt.Fprintf(&large, "  chart-%06d:\n  - version: 1.0.0\n    digest: %064d\n    urls: [x.tgz]\n", i, i)
	}
	large.WriteString("  app:\n  - version: 3.0.0\n    urls: [app.tgz]\n")
	for name, text := range map[string]string{
		"JSON":       `{"entries":{"app":[{"version":"3.0.0","urls":["app.tgz"]}]}}`,
		"deep":       "entries:\n    app:\n      - version: 3.0.0\n        urls: [app.tgz]\n",
		"flow":       "entries: {app: [{version: 3.0.0, urls: [app.tgz]}]}\n",
		"last":       "entries:\n  b: []\n  app:\n  - version: 3.0.0\n    urls: [app.tgz]",
		"very large": large.String(),
	} {
		t.Run(name, func(t *testing.T) {
			got, err := entriesOf(strings.NewReader(text), "app")
			if err != nil || len(got) != 1 || got[0].Version != "3.0.0" {
				t.Errorf("got %v, %v", got, err)
			}
		})
	}
	if _, err := entriesOf(&large, "missing"); err == nil {
		t.Error("a chart that is not there is found")
	}
}

func TestBounds(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for { // until the client has enough
			if _, err := w.Write(make([]byte, 1<<20)); err != nil {
				return
			}
		}
	}))
	t.Cleanup(s.Close)
	_, err := fetch(t, &Fetcher{}, Chart{Chart: s.URL + "/a.tgz"})
	if err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("an endless archive gives %v", err)
	}
	if _, err := fetch(t, &Fetcher{}, Chart{Chart: "a", Repo: s.URL}); err == nil {
		t.Error("an endless index is read")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := (&Fetcher{}).Fetch(ctx, Chart{Chart: s.URL + "/a.tgz"}); err == nil {
		t.Error("a term that has ended fetches charts")
	}
}

func TestArchivesOfTheServer(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(filepath.Dir(dir), "secret.tgz"), []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "app.tgz"), []byte("local"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../secret.tgz", filepath.Join(dir, "link.tgz")); err != nil {
		t.Fatal(err)
	}
	f := &Fetcher{Dir: dir}
	for _, chart := range []string{"app.tgz", "file://app.tgz", "https://%{KUBERNETES_API}%/static/charts/app.tgz"} {
		if got, err := fetch(t, f, Chart{Chart: chart}); err != nil || got != "local" {
			t.Errorf("%s: got %q, %v", chart, got, err)
		}
	}
	for _, chart := range []string{"../secret.tgz", "link.tgz", "/etc/passwd.tgz", "none.tgz"} {
		if got, err := fetch(t, f, Chart{Chart: chart}); err == nil {
			t.Errorf("%s gives %q", chart, got)
		}
	}
	within := Chart{Content: base64.StdEncoding.EncodeToString([]byte("within")) + "\n"}
	if got, err := fetch(t, f, within); err != nil || got != "within" {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestRegistry(t *testing.T) {
	files := ocireg.New(ocireg.Logger(log.New(io.Discard, "", 0)))
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "u" || password != "p" {
			w.Header().Set("WWW-Authenticate", `Basic realm="charts"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		files.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	host := strings.TrimPrefix(s.URL, "http://")
	for _, version := range []string{"1.0.0", "1.1.0", "2.0.0-rc.1"} {
		push(t, host+"/charts/app:"+version, "chart "+version)
	}
	login := fmt.Appendf(nil, `{"auths":{%q:{"auth":%q}}}`, host, base64.StdEncoding.EncodeToString([]byte("u:p")))
	c := Chart{Chart: "oci://" + host + "/charts/app", PlainHTTP: true, DockerConfig: login}
	for version, want := range map[string]string{"": "chart 1.1.0", "1.0.0": "chart 1.0.0", "<1.1": "chart 1.0.0",
		"2.0.0-rc.1": "chart 2.0.0-rc.1"} {
		t.Run("version "+version, func(t *testing.T) {
			c := c
			c.Version = version
			if got, err := fetch(t, &Fetcher{}, c); err != nil || got != want {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
	c.Chart, c.Repo, c.DockerConfig, c.Username, c.Password = "app", "oci://"+host+"/charts", nil, "u", "p"
	if got, err := fetch(t, &Fetcher{}, c); err != nil || got != "chart 1.1.0" {
		t.Errorf("by a repository: got %q, %v", got, err)
	}
	c.Password = "wrong"
	if _, err := fetch(t, &Fetcher{}, c); err == nil {
		t.Error("a wrong password is taken")
	}
}

// push makes a chart of a registry.
func push(t *testing.T, at, content string) {
	t.Helper()
	layer := static.NewLayer([]byte(content), types.MediaType("application/vnd.cncf.helm.chart.content.v1.tar+gzip"))
	image, err := mutate.AppendLayers(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1),
		"application/vnd.cncf.helm.config.v1+json"), layer)
	if err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag(at, name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(tag, v1.Image(image), remote.WithAuth(&authn.Basic{Username: "u", Password: "p"}),
		remote.WithContext(t.Context())); err != nil {
		t.Fatal(err)
	}
}
