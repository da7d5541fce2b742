package files

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/barque/barque/controllers/manifests"
)

// API is the cluster as a server writes its files to it.
type API interface {
	// Content makes a Secret. One that exists is no error.
	Content(ctx context.Context, secret *corev1.Secret) error
	// Describe says by server-side apply what this server has of a file. Without a source it has
	// none.
	Describe(ctx context.Context, name string, spec manifests.Spec) error
}

// Config of a Reader.
type Config struct {
	Dir    string
	Server string // this one's name
	API    API
	// Manifests and Secrets are informers of the process. Secrets knows those of contents at least.
	Manifests cache.SharedIndexInformer
	Secrets   cache.SharedIndexInformer
	// Every is the interval of looks. Default 2 s.
	Every  time.Duration
	Logger *slog.Logger
}

// Reader keeps the objects of a server's files.
type Reader struct {
	Config
	last    look // of before; the zero value is none
	looked  bool
	hashes  map[string]hashed // of files, by path
	told    map[string]string // faults that were logged, by path
	failing error             // of the last write
	pause   time.Duration     // before the next one, after a failure
	until   time.Time
}

// hashed is the hash of a file's content at its stamp.
type hashed struct {
	stamp stamp
	hash  string
}

// NewReader makes the directory.
func NewReader(config Config) (*Reader, error) {
	if config.Every <= 0 {
		config.Every = 2 * time.Second
	}
	if err := os.MkdirAll(config.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of manifests: %w", err)
	}
	return &Reader{Config: config, hashes: map[string]hashed{}, told: map[string]string{}}, nil
}

// Run follows the directory until ctx ends.
func (r *Reader) Run(ctx context.Context) error {
	if !cache.WaitForCacheSync(ctx.Done(), r.Manifests.HasSynced, r.Secrets.HasSynced) {
		return nil
	}
	ticker := time.NewTicker(r.Every)
	defer ticker.Stop()
	for {
		r.step(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// longest bounds the pause after failed writes.
const longest = 30 * time.Second

// step looks once, and writes what the cluster does not know yet.
func (r *Reader) step(ctx context.Context) {
	now, err := read(r.Dir)
	r.tell("", err)
	if err != nil {
		r.looked = false
		return
	}
	before, looked := r.last, r.looked
	r.last, r.looked = now, true
	if !looked || time.Now().Before(r.until) {
		return
	}
	err = r.write(ctx, before, now)
	if err == nil {
		r.failing, r.pause = nil, 0
		return
	}
	if ctx.Err() != nil {
		return
	}
	if r.failing == nil || r.failing.Error() != err.Error() {
		r.Logger.Warn("telling the cluster about files of the directory manifests; trying again", "err", err)
	}
	r.failing, r.pause = err, min(max(2*r.pause, r.Every), longest)
	r.until = time.Now().Add(r.pause)
}

// tell logs a fault once; nil ends it.
func (r *Reader) tell(path string, fault error) {
	if fault == nil {
		delete(r.told, path)
		return
	}
	if r.told[path] != fault.Error() {
		r.told[path] = fault.Error()
		r.Logger.Warn("a file of the directory manifests is left as it was", "file", filepath.Join(r.Dir, path), "err",
			fault)
	}
}

func (r *Reader) write(ctx context.Context, before, now look) error {
	var errs []error
	have := map[string]bool{} // names of Manifests of this server
	for _, path := range slices.Sorted(maps.Keys(now.files)) {
		name := NameOf(path)
		have[name] = true
		f := now.files[path]
		if now.skipped[path] {
			continue
		}
		r.tell(path, f.fault)
		if f.fault != nil || before.files[path].stamp != f.stamp {
			continue
		}
		if err := r.offer(ctx, name, path, f); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", path, err))
		}
	}
	for path := range before.files {
		have[NameOf(path)] = true // it has just gone, or changes
	}
	for path := range now.skipped {
		have[NameOf(path)] = true
	}
	for path := range r.hashes {
		if _, exists := now.files[path]; !exists {
			delete(r.hashes, path)
			delete(r.told, path)
		}
	}
	for _, obj := range r.Manifests.GetStore().List() {
		u, ok := obj.(*unstructured.Unstructured)
		if !ok || have[u.GetName()] {
			continue
		}
		o, err := manifests.Read(u)
		if err != nil || r.own(o.Spec.Sources) == nil {
			continue
		}
		r.Logger.Info("a file of the directory manifests has gone", "manifest", o.Name)
		// Without any field left, server-side apply would make the spec null.
		if err := r.API.Describe(ctx, o.Name, manifests.Spec{Path: o.Spec.Path}); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", o.Name, err))
		}
	}
	return errors.Join(errs...)
}

// own returns this server's source.
func (r *Reader) own(sources []manifests.Source) *manifests.Source {
	for i := range sources {
		if sources[i].Server == r.Server {
			return &sources[i]
		}
	}
	return nil
}

// offer makes the cluster know the content of a file.
func (r *Reader) offer(ctx context.Context, name, path string, f file) error {
	known, cached := r.hashes[path]
	var content []byte
	if !cached || known.stamp != f.stamp {
		text, err := r.content(path, f)
		if err != nil {
			r.tell(path, err)
			return nil
		}
		content, known = text, hashed{f.stamp, manifests.Hash(text)}
		r.hashes[path] = known
	}
	var sources []manifests.Source
	obj, exists, err := r.Manifests.GetStore().GetByKey(name)
	if err != nil {
		return err
	}
	if u, ok := obj.(*unstructured.Unstructured); exists && ok {
		o, err := manifests.Read(u)
		if err != nil {
			return err
		}
		sources = o.Spec.Sources
	}
	secret := metav1.NamespaceSystem + "/" + manifests.SecretName(known.hash)
	_, stored, err := r.Secrets.GetStore().GetByKey(secret)
	if err != nil {
		return err
	}
	if !stored {
		if content == nil {
			if content, err = r.content(path, f); err != nil || manifests.Hash(content) != known.hash {
				delete(r.hashes, path) // it has just changed
				return nil
			}
		}
		packed, err := manifests.Pack(content)
		if err != nil {
			r.tell(path, err)
			return nil
		}
		if err := r.API.Content(ctx, packed); err != nil {
			return err
		}
	}
	own := r.own(sources)
	if own != nil && own.Hash == known.hash {
		return nil
	}
	r.Logger.Info("a file of the directory manifests is new, or has changed", "manifest", name, "hash", known.hash[:12])
	return r.API.Describe(ctx, name, manifests.Spec{Path: path, Sources: []manifests.Source{
		{Server: r.Server, Hash: known.hash, Turn: manifests.NextTurn(sources)}}})
}

// content reads a file that is still the same.
func (r *Reader) content(path string, f file) ([]byte, error) {
	in, err := os.Open(filepath.Join(r.Dir, path))
	if err != nil {
		return nil, err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return nil, err
	}
	if describe(info).stamp != f.stamp {
		return nil, errors.New("it is being written")
	}
	var out bytes.Buffer
	if n, err := out.ReadFrom(&limited{in, manifests.MaxBytes + 1}); err != nil {
		return nil, err
	} else if n != info.Size() {
		return nil, errors.New("it is being written")
	}
	return out.Bytes(), nil
}

// limited reads so many bytes at most.
type limited struct {
	from fs.File
	left int
}

func (l *limited) Read(p []byte) (int, error) {
	if l.left <= 0 {
		return 0, errors.New("it is longer than it was")
	}
	n, err := l.from.Read(p[:min(len(p), l.left)])
	l.left -= n
	return n, err
}

// Live is the API of a cluster, by clients of this server.
type Live struct {
	Client  kubernetes.Interface
	Objects dynamic.Interface
	Server  string
}

// Content implements API.
func (l Live) Content(ctx context.Context, secret *corev1.Secret) error {
	_, err := l.Client.CoreV1().Secrets(secret.Namespace).Create(ctx, secret, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// Describe implements API. Each server is a field manager of its own, so that what it says no more
// goes, and what others say stays.
func (l Live) Describe(ctx context.Context, name string, spec manifests.Spec) error {
	body, err := json.Marshal(map[string]any{"apiVersion": manifests.Kind.GroupVersion().String(),
		"kind": manifests.Kind.Kind, "metadata": map[string]any{"name": name}, "spec": spec})
	if err != nil {
		return err
	}
	force := true
	_, err = l.Objects.Resource(manifests.Resource).Patch(ctx, name, types.ApplyPatchType, body,
		metav1.PatchOptions{FieldManager: "barque-files-" + l.Server, Force: &force})
	return err
}
