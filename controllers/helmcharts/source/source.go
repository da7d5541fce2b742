// Package source fetches charts: from a repository, a URL, an OCI registry, or the directory
// "charts" of the server.
//
// It bounds what it fetches, in bytes and in time, keeps archives for a while, and writes nothing
// to a disk.
package source

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// Bounds of one chart.
const (
	maxArchive = 20 << 20 // bytes of an archive
	maxIndex   = 64 << 20 // bytes of a repository's index
	patience   = 2 * time.Minute
)

// What the cache holds, in bytes and in time.
const (
	maxCached = 16 << 20
	cacheTime = 10 * time.Minute
)

// Chart says where a chart is.
type Chart struct {
	Chart, Version, Repo string
	Content              string // the archive in base64; wins over the rest
	CA                   []byte // PEM; beside those of the system
	Insecure             bool   // any certificate is believed
	PlainHTTP            bool   // of an OCI registry
	Username, Password   string
	ClientCert           []byte // PEM
	ClientKey            []byte // PEM
	PassCredentials      bool   // to all hosts
	DockerConfig         []byte // of a Secret kubernetes.io/dockerconfigjson
}

// Fetcher fetches charts. It is safe for concurrent use.
type Fetcher struct {
	// Dir has archives of the server: see local.
	Dir string
	// Now is time.Now when nil.
	Now func() time.Time

	mu     sync.Mutex
	cached map[string]archive
}

type archive struct {
	data []byte
	at   time.Time
}

// Fetch returns the archive of a chart.
func (f *Fetcher) Fetch(ctx context.Context, c Chart) ([]byte, error) {
	if c.Content != "" {
		data, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(c.Content), ""))
		if err != nil {
			return nil, fmt.Errorf("chartContent is no base64: %w", err)
		}
		return data, nil
	}
	if name, local := localName(c); local {
		return f.local(name)
	}
	key, err := keyOf(c)
	if err != nil {
		return nil, err
	}
	if data := f.get(key); data != nil {
		return data, nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("the chart was not fetched within %v", patience))
	defer cancel()
	data, err := f.fetch(ctx, c)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
			err = fmt.Errorf("%w: %w", cause, err)
		}
		return nil, fmt.Errorf("fetch the chart: %w", err)
	}
	f.put(key, data)
	return data, nil
}

func (f *Fetcher) fetch(ctx context.Context, c Chart) ([]byte, error) {
	client, err := c.client(ctx)
	if err != nil {
		return nil, err
	}
	defer client.CloseIdleConnections()
	switch {
	case strings.HasPrefix(c.Chart, "oci://"), strings.HasPrefix(c.Repo, "oci://"):
		return c.pull(client)
	case isURL(c.Chart):
		return c.get(ctx, client, c.Chart, c.Chart, maxArchive)
	case c.Repo != "":
		return c.fromRepository(ctx, client)
	}
	return nil, fmt.Errorf("chart %q is neither a URL nor the name of an archive (NAME.tgz) in the servers' directory "+
		"charts: give its repository in repo", c.Chart)
}

func isURL(text string) bool {
	return strings.HasPrefix(text, "https://") || strings.HasPrefix(text, "http://")
}

// The forms in which k3s names archives that its servers have.
const (
	staticHost = "%{KUBERNETES_API}%"
	staticPath = "/static/charts/"
)

// localName returns the name of an archive of the servers.
func localName(c Chart) (string, bool) {
	name := strings.TrimPrefix(c.Chart, "file://")
	if rest, static := strings.CutPrefix(c.Chart, "https://"+staticHost+staticPath); static {
		name = rest
	} else if c.Repo != "" || isURL(c.Chart) || strings.HasPrefix(c.Chart, "oci://") {
		return "", false
	}
	return name, strings.HasSuffix(name, ".tgz")
}

// local reads an archive of the server. A name leads nowhere out of the directory.
func (f *Fetcher) local(name string) ([]byte, error) {
	root, err := os.OpenRoot(f.Dir)
	if err != nil {
		return nil, fmt.Errorf("the leader has no directory of charts: %w", err)
	}
	defer root.Close()
	in, err := root.Open(filepath.Clean(name))
	if err != nil {
		return nil, fmt.Errorf("the archive is not in the directory charts of the leader: %w; put it on all servers, "+
			"or into chartContent", err)
	}
	defer in.Close()
	return readAll(in, maxArchive)
}

func readAll(r io.Reader, limit int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = fmt.Errorf("it has more than %d bytes", limit)
	}
	return data, err
}

// client returns a client for all requests of one chart. It ends with ctx, whatever contexts the
// requests have.
func (c *Chart) client(ctx context.Context) (*http.Client, error) {
	t := http.DefaultTransport.(*http.Transport).Clone() // with the proxies of the environment
	t.MaxIdleConns, t.ResponseHeaderTimeout = 4, 30*time.Second
	t.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: c.Insecure}
	if len(c.CA) > 0 {
		pool, err := x509.SystemCertPool()
		if err != nil {
			pool = x509.NewCertPool()
		}
		if !pool.AppendCertsFromPEM(c.CA) {
			return nil, errors.New("repoCA or repoCAConfigMap has no certificate in PEM")
		}
		t.TLSClientConfig.RootCAs = pool
	}
	if len(c.ClientCert) > 0 {
		pair, err := tls.X509KeyPair(c.ClientCert, c.ClientKey)
		if err != nil {
			return nil, fmt.Errorf("authSecret: tls.crt and tls.key: %w", err)
		}
		t.TLSClientConfig.Certificates = []tls.Certificate{pair}
	}
	return &http.Client{Transport: &bounded{next: t, ctx: ctx, left: maxIndex + 2*maxArchive}}, nil
}

// bounded is a transport that ends with ctx, and after so many bytes.
type bounded struct {
	next *http.Transport
	ctx  context.Context

	mu   sync.Mutex
	left int64
}

// CloseIdleConnections is called by http.Client.
func (b *bounded) CloseIdleConnections() { b.next.CloseIdleConnections() }

func (b *bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(r.Context())
	stop := context.AfterFunc(b.ctx, func() { cancel(context.Cause(b.ctx)) })
	end := func() { stop(); cancel(nil) }
	answer, err := b.next.RoundTrip(r.Clone(ctx))
	if err != nil {
		end()
		return nil, err
	}
	answer.Body = &boundedBody{answer.Body, b, end}
	return answer, nil
}

type boundedBody struct {
	io.ReadCloser
	of  *bounded
	end func()
}

func (b *boundedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.of.mu.Lock()
	defer b.of.mu.Unlock()
	if b.of.left -= int64(n); b.of.left < 0 {
		return 0, fmt.Errorf("a chart and its index may have %d bytes", int64(maxIndex+2*maxArchive))
	}
	return n, err
}

func (b *boundedBody) Close() error {
	defer b.end()
	return b.ReadCloser.Close()
}

// get fetches a URL. The credentials go to the host of home alone, unless the user wants it
// otherwise.
func (c *Chart) get(ctx context.Context, client *http.Client, home, at string, limit int64) ([]byte, error) {
	body, err := c.open(ctx, client, home, at)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	data, err := readAll(body, limit)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", redacted(at), err)
	}
	return data, nil
}

func (c *Chart) open(ctx context.Context, client *http.Client, home, at string) (io.ReadCloser, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return nil, err
	}
	if c.Username != "" && (c.PassCredentials || sameHost(home, at)) {
		r.SetBasicAuth(c.Username, c.Password) // not for other hosts to which the answer leads
	}
	answer, err := client.Do(r)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode != http.StatusOK {
		_ = answer.Body.Close()
		return nil, fmt.Errorf("%s answers %s", redacted(at), answer.Status)
	}
	return answer.Body, nil
}

func sameHost(a, b string) bool {
	u, err := url.Parse(a)
	v, err2 := url.Parse(b)
	return err == nil && err2 == nil && u.Scheme == v.Scheme && u.Host == v.Host
}

// redacted is a URL without a password.
func redacted(at string) string {
	if u, err := url.Parse(at); err == nil {
		return u.Redacted()
	}
	return "the URL"
}

// keyOf identifies a chart in the cache, and who may have it.
func keyOf(c Chart) (string, error) {
	raw, err := json.Marshal(c)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:]), nil
}

func (f *Fetcher) now() time.Time {
	if f.Now != nil {
		return f.Now()
	}
	return time.Now()
}

func (f *Fetcher) get(key string) []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.expire()
	return bytes.Clone(f.cached[key].data)
}

func (f *Fetcher) put(key string, data []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cached == nil {
		f.cached = map[string]archive{}
	}
	f.expire()
	total := len(data)
	for _, a := range f.cached {
		total += len(a.data)
	}
	if total > maxCached {
		clear(f.cached)
	}
	if len(data) <= maxCached {
		f.cached[key] = archive{bytes.Clone(data), f.now()}
	}
}

// expire drops old archives. f.mu is held.
func (f *Fetcher) expire() {
	for k, a := range f.cached {
		if f.now().Sub(a.at) > cacheTime {
			delete(f.cached, k)
		}
	}
}

// Trim drops old archives: nobody may fetch one any more.
func (f *Fetcher) Trim() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.expire()
}
