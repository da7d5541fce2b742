package openapi

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"k8s.io/kube-openapi/pkg/aggregator"
	"k8s.io/kube-openapi/pkg/handler3"
	"k8s.io/kube-openapi/pkg/openapiconv"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

const (
	// askExtensionsAgain is the greatest age of an extension's answer about its documents.
	askExtensionsAgain = time.Minute
	// extensionPatience bounds how long all extensions together keep a client waiting.
	extensionPatience = 5 * time.Second
	// extensionLimit bounds a document of an extension.
	extensionLimit = 64 << 20
)

// Extension is a group and version that another server serves.
type Extension struct {
	Group, Version string
	// Get sends a request to that server.
	Get func(ctx context.Context, path string, header http.Header) (*http.Response, error)
}

func (e Extension) path() string { return "apis/" + e.Group + "/" + e.Version }

// extensions has the documents of extensions. They are not to be trusted: each is used for the
// extension's own group and version only, and a faulty document is left out.
type extensions struct {
	current func() []Extension

	mu   sync.Mutex
	docs map[string]*extensionDocs // by path
}

// extensionDocs are the documents of one extension.
type extensionDocs struct {
	asked  time.Time
	v3     *document
	v2     *spec.Swagger
	v2Hash string
}

func newExtensions(current func() []Extension) *extensions {
	return &extensions{current: current, docs: map[string]*extensionDocs{}}
}

// v3 returns the documents of version 3.
func (e *extensions) v3() map[string]document {
	out := map[string]document{}
	for path, d := range e.refresh() {
		if d.v3 != nil {
			out[path] = *d.v3
		}
	}
	return out
}

// v2 returns the documents of version 2, and their hashes.
func (e *extensions) v2() (docs []*spec.Swagger, hashes []string) {
	known := e.refresh()
	paths := make([]string, 0, len(known))
	for path := range known {
		paths = append(paths, path)
	}
	slices.Sort(paths)
	for _, path := range paths {
		if d := known[path]; d.v2 != nil {
			docs, hashes = append(docs, d.v2), append(hashes, path+d.v2Hash)
		}
	}
	return docs, hashes
}

// refresh requests the documents of extensions whose answer is too old, and returns those of all.
func (e *extensions) refresh() map[string]extensionDocs {
	if e.current == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), extensionPatience)
	defer cancel()
	e.mu.Lock()
	defer e.mu.Unlock()
	var asking sync.WaitGroup
	known := map[string]*extensionDocs{}
	for _, x := range e.current() {
		d := cmp.Or(e.docs[x.path()], &extensionDocs{})
		known[x.path()] = d
		if time.Since(d.asked) > askExtensionsAgain {
			asking.Go(func() { d.ask(ctx, x) })
		}
	}
	asking.Wait()
	e.docs = known
	out := make(map[string]extensionDocs, len(known))
	for path, d := range known {
		out[path] = *d
	}
	return out
}

// ask reads an extension's documents. Without an answer, the earlier ones stay.
func (d *extensionDocs) ask(ctx context.Context, x Extension) {
	d.asked = time.Now()
	if body, err := get(ctx, x, V2Path); err == nil {
		var doc *spec.Swagger
		if err := guarded(func() error { return json.Unmarshal(body, &doc) }); err == nil && doc != nil {
			prefix := []string{"/" + x.path() + "/"}
			if err := guarded(
				func() error {
					doc = aggregator.FilterSpecByPathsWithoutSideEffects(doc,
						prefix)
					return nil
				}); err == nil {
				d.v2, d.v2Hash = doc, sum(body)
			}
		}
	}
	body, err := get(ctx, x, V3Path)
	var root handler3.OpenAPIV3Discovery
	if err == nil && json.Unmarshal(body, &root) == nil {
		if at := root.Paths[x.path()].ServerRelativeURL; at != "" {
			d.v3 = &document{hash: sum([]byte(at)), fetch: func(r *http.Request) (*http.Response, error) {
				// Without the hash: the extension's current document is better than a redirection.
				return x.Get(r.Context(), V3Path+"/"+x.path(), http.Header{"Accept": r.Header["Accept"]})
			}}
		}
		return
	}
	// An extension without version 3 is described by its version 2.
	if doc := d.v2; doc != nil {
		d.v3 = &document{hash: d.v2Hash, build: func() (converted any, err error) {
			err = guarded(func() error { converted = openapiconv.ConvertV2ToV3(doc); return nil })
			return converted, err
		}}
	}
}

// get reads a document of an extension as JSON.
func get(ctx context.Context, x Extension, path string) ([]byte, error) {
	res, err := x.Get(ctx, path, http.Header{"Accept": {mediaJSON}})
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", path, res.Status)
	}
	return io.ReadAll(io.LimitReader(res.Body, extensionLimit))
}

// guarded calls a function that works on a document of an extension. The libraries for that panic
// when a required part is missing, and an extension's document must not end a server.
func guarded(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the document of an extension is malformed: %v", p)
		}
	}()
	return f()
}

// mergeV2 adds documents of extensions to one of version 2.
func mergeV2(doc *spec.Swagger, theirs []*spec.Swagger) error {
	for _, t := range theirs {
		if err := guarded(
			func() error {
				return aggregator.MergeSpecsIgnorePathConflictRenamingDefinitionsAndParameters(doc,
					t)
			}); err != nil {
			return err
		}
	}
	return nil
}

// passOn serves a document from the extension that has it.
func (s *Service) passOn(w http.ResponseWriter, r *http.Request, d document) {
	res, err := d.fetch(r)
	if err != nil {
		unkept(w)
		http.Error(w, "asking the extension API server: "+err.Error(), http.StatusServiceUnavailable)
		return
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		unkept(w)
	}
	for _, name := range []string{"Content-Type", "Vary"} {
		if v := res.Header[name]; v != nil {
			w.Header()[name] = v
		}
	}
	w.Header().Set("Etag", `"`+d.hash+`"`)
	w.WriteHeader(res.StatusCode)
	_, _ = io.Copy(w, io.LimitReader(res.Body, extensionLimit)) // the client has gone if that fails
}
