package openapi

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/handler3"

	"github.com/barque/barque/apiserver/openapi/schemas"
)

const mediaJSON = "application/json"

// form is how documents of a version are encoded besides JSON.
type form struct {
	media string
	// asked is a substring of both spellings of the media type.
	asked    string
	fromJSON func([]byte) ([]byte, error)
}

var (
	formV2 = form{"application/com.github.proto-openapi.spec.v2.v1.0+protobuf", "proto-openapi.spec.v2",
		handler.ToProtoBinary}
	formV3 = form{"application/com.github.proto-openapi.spec.v3.v1.0+protobuf", "proto-openapi.spec.v3",
		handler3.ToV3ProtoBinary}
)

// A client requests the list of documents, and then those that it does not have. The list is
// therefore made without building a document: the hash of one is that of its sources.
const (
	keptDocuments = 16
	keptFor       = 10 * time.Minute
)

// document is a document of OpenAPI v3, of a group and version, or the one of v2.
type document struct {
	hash  string
	build func() (any, error)
	fetch func(r *http.Request) (*http.Response, error) // instead of build: from the server that has it
}

// documentCache keeps the last documents in their encoded form.
type documentCache struct {
	encoded *cache.LRUExpireCache
	// building is held while a document is built: to build one takes much more memory than to keep
	// it.
	building *sync.Mutex
}

func newDocumentCache() documentCache {
	return documentCache{cache.NewLRUExpireCache(keptDocuments), &sync.Mutex{}}
}

// get returns a document in a media type: the form's, or JSON.
func (c documentCache) get(path string, d document, f form, media string) ([]byte, error) {
	type key struct{ path, hash, media string }
	k := key{path, d.hash, media}
	if found, ok := c.encoded.Get(k); ok {
		return found.([]byte), nil
	}
	c.building.Lock()
	defer c.building.Unlock()
	if found, ok := c.encoded.Get(k); ok {
		return found.([]byte), nil
	}
	doc, err := d.build()
	if err != nil {
		return nil, err
	}
	encoded, err := json.Marshal(doc)
	if err == nil && media == f.media {
		encoded, err = f.fromJSON(encoded)
	}
	if err != nil {
		return nil, err
	}
	c.encoded.Add(k, encoded, keptFor)
	return encoded, nil
}

// list returns all documents by their paths.
func (s *Service) list() (map[string]document, error) {
	list := map[string]document{}
	for _, p := range s.Parts {
		for _, ws := range p.Services.RegisteredWebServices() {
			path := strings.TrimPrefix(ws.RootPath(), "/")
			hash := sha256.New()
			for _, r := range ws.Routes() {
				fmt.Fprintln(hash, r.Method, r.Path)
			}
			list[path] = document{
				hash:  s.hash(path, hex.EncodeToString(hash.Sum(nil))),
				build: func() (any, error) { return s.ownV3(p, ws) },
			}
		}
	}
	defined, err := s.established()
	if err != nil {
		return nil, err
	}
	for gv, crds := range byVersion(defined) {
		list["apis/"+gv.String()] = document{
			hash:  s.tag(crds...),
			build: func() (any, error) { return customV3(gv, crds) },
		}
	}
	for path, d := range s.extended.v3() {
		if _, ours := list[path]; !ours {
			list[path] = d
		}
	}
	return list, nil
}

// tag is the hash of the sources of a document of custom resources. It is the same on every server.
func (s *Service) tag(crds ...*apiextensionsv1.CustomResourceDefinition) string {
	parts := make([]string, 0, len(crds))
	for _, crd := range crds {
		parts = append(parts, fmt.Sprint(crd.UID, crd.Generation, crd.Status.AcceptedNames))
	}
	return s.hash(parts...)
}

func (s *Service) hash(parts ...string) string {
	h := sha256.New()
	fmt.Fprintln(h, s.Version, schemas.Hash())
	for _, p := range parts {
		fmt.Fprintln(h, p)
	}
	return strings.ToUpper(hex.EncodeToString(h.Sum(nil)))
}

// sum is the hash of an extension's document.
func sum(data []byte) string {
	h := sha256.Sum256(data)
	return strings.ToUpper(hex.EncodeToString(h[:]))
}

// serveRoot serves the list of documents.
func (s *Service) serveRoot(w http.ResponseWriter, r *http.Request) {
	list, err := s.list()
	if err != nil {
		unbuilt(w, err)
		return
	}
	root := handler3.OpenAPIV3Discovery{Paths: make(map[string]handler3.OpenAPIV3DiscoveryGroupVersion, len(list))}
	for path, d := range list {
		root.Paths[path] = handler3.OpenAPIV3DiscoveryGroupVersion{ServerRelativeURL: location(path, d.hash)}
	}
	body, err := json.Marshal(root)
	if err != nil {
		unbuilt(w, err)
		return
	}
	w.Header().Set("Content-Type", mediaJSON)
	w.Header().Set("Etag", `"`+s.hash(string(body))+`"`)
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(body))
}

// location is the URL of the document with this hash.
func location(path, hash string) string {
	return V3Path + "/" + path + "?" + url.Values{"hash": {hash}}.Encode()
}

// serveDocument serves one document. With its hash in the request it never changes, and clients
// keep it.
func (s *Service) serveDocument(w http.ResponseWriter, r *http.Request) {
	list, err := s.list()
	if err != nil {
		unbuilt(w, err)
		return
	}
	path := strings.TrimPrefix(r.URL.Path, V3Path+"/")
	d, ok := list[path]
	if !ok {
		http.NotFound(w, r)
		return
	}
	if asked := r.URL.Query().Get("hash"); asked != "" {
		if asked != d.hash {
			http.Redirect(w, r, location(path, d.hash), http.StatusMovedPermanently)
			return
		}
		w.Header().Set("Cache-Control", "public, immutable")
		w.Header().Set("Expires", time.Now().AddDate(1, 0, 0).Format(time.RFC1123))
	}
	if d.fetch != nil {
		s.passOn(w, r, d)
		return
	}
	s.send(w, r, path, d, formV3)
}

// serveV2 serves the document of version 2.
func (s *Service) serveV2(w http.ResponseWriter, r *http.Request) {
	defined, err := s.established()
	if err != nil {
		unbuilt(w, err)
		return
	}
	theirs, hashes := s.extended.v2()
	s.send(w, r, V2Path, document{
		hash: s.hash(append(hashes, s.tag(defined...))...),
		build: func() (any, error) {
			doc, err := s.ownV2()
			if err == nil {
				doc, err = withCustomV2(doc, defined)
			}
			if err == nil {
				err = mergeV2(doc, theirs)
			}
			return doc, err
		},
	}, formV2)
}

// send answers with a document in the form that the client requests.
func (s *Service) send(w http.ResponseWriter, r *http.Request, path string, d document, f form) {
	media := mediaJSON
	if strings.Contains(r.Header.Get("Accept"), f.asked) {
		media = f.media
	}
	body, err := s.documents.get(path, d, f, media)
	if err != nil {
		unkept(w)
		unbuilt(w, err)
		return
	}
	w.Header().Set("Content-Type", media)
	w.Header().Add("Vary", "Accept")
	w.Header().Set("Etag", `"`+d.hash+`"`)
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(body))
}

// unkept takes back that the answer may be kept.
func unkept(w http.ResponseWriter) {
	w.Header().Del("Cache-Control")
	w.Header().Del("Expires")
}
