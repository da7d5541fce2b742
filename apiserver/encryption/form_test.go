package encryption

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage/value"

	"github.com/barque/barque/apiserver/storage"
	"github.com/barque/barque/raftstore"
)

// file is a file of providers, as a test has it.
type file struct {
	hash      string
	providers map[string]*boxed
}

func (f file) Now() Providers { return f }
func (f file) File() string   { return f.hash }
func (f file) Of(resource schema.GroupResource) Provider {
	if with := f.providers[resource.String()]; with != nil {
		return with
	}
	return nil
}

func (f file) Unreadable(_ []byte, at value.Context, cause error) error {
	return &storage.UnavailableError{Err: fmt.Errorf("read %s: %w", at.AuthenticatedData(), cause)}
}

// boxed writes its label before a value.
type boxed struct {
	label    string
	identity bool
}

func (b *boxed) Encrypts() bool { return !b.identity }

func (b *boxed) TransformToStorage(_ context.Context, data []byte, _ value.Context) ([]byte, error) {
	return append([]byte(b.label), data...), nil
}

func (b *boxed) TransformFromStorage(_ context.Context, stored []byte, _ value.Context) ([]byte, bool, error) {
	data, ok := bytes.CutPrefix(stored, []byte(b.label))
	if !ok {
		return nil, false, errors.New("it is of another key")
	}
	return data, false, nil
}

// TestForms: the key for a resource follows from the state and this server's file, and a resource
// that the state covers is never in clear.
func TestForms(t *testing.T) {
	secrets, widgets := schema.GroupResource{Resource: "secrets"},
		schema.GroupResource{Group: "example.com", Resource: "widgets"}
	with := map[string]*boxed{"secrets": {label: "k8s:enc:secretbox:v1:k1:"},
		"events": {label: "k8s:enc:secretbox:v1:k1:"}, "configmaps": {identity: true}}
	for what, c := range map[string]struct {
		epoch    Epoch
		hash     string
		resource schema.GroupResource
		want     string // the beginning of the stored value; empty: in clear
	}{
		"in use": {
			Epoch{Writes: "one", File: "h", Labels: []string{"k8s:enc:secretbox:v1:k1"},
				Resources: []string{"secrets"}}, "h", secrets, "k8s:enc:secretbox:v1:k1:"},
		"another file is in use": {
			Epoch{Writes: "one", File: "h", Labels: []string{"k8s:enc:secretbox:v1:k1"},
				Resources: []string{"secrets"}}, "i", secrets, Prefix + "one:"},
		"no file here": {
			Epoch{Writes: "one", File: "h", Labels: []string{"k8s:enc:secretbox:v1:k1"},
				Resources: []string{"secrets"}}, "", secrets, Prefix + "one:"},
		"no file is in use": {Epoch{Writes: "one", Resources: []string{"secrets"}}, "h", secrets,
			Prefix + "one:"},
		"another key is in use": {
			Epoch{Writes: "one", File: "h", Labels: []string{"k8s:enc:secretbox:v1:k2"},
				Resources: []string{"secrets"}}, "h", secrets, Prefix + "one:"},
		"nothing is encrypted": {Epoch{Resources: []string{"secrets"}}, "h", secrets, ""},
		"identity": {Epoch{Writes: "one", File: "h", Resources: []string{"configmaps"}}, "h",
			schema.GroupResource{Resource: "configmaps"}, Prefix + "one:"},
		"never": {Epoch{Writes: "one", File: "h", Resources: []string{"*.*"}}, "h",
			schema.GroupResource{Resource: "events"}, ""},
		"a wildcard": {Epoch{Writes: "one", Resources: []string{"*.*"}}, "", widgets, Prefix + "one:"},
		"an exception": {
			Epoch{Writes: "one", Resources: []string{"*.*"}, Except: []string{"*.example.com"}}, "", widgets, ""},
		"that the file alone names": {Epoch{Writes: "one", File: "h", Labels: []string{"k8s:enc:secretbox:v1:k1"}}, "h",
			secrets, "k8s:enc:secretbox:v1:k1:"},
	} {
		transformers := New(&ring{epoch: &c.epoch, keys: map[string][]byte{"one": key(1)}}, guardKey)
		transformers.Use(file{c.hash, with})
		sealed, guard, err := transformers.TransformerForResource(c.resource).(storage.Sealer).Seal(t.Context(),
			[]byte("x"), place("/registry/x"))
		if err != nil || !strings.HasPrefix(string(sealed), c.want) || c.want == "" && string(sealed) != "x" ||
			(guard.Key == guardKey) == Never(c.resource) {
			t.Errorf("%s: %q, %+v, %v", what, sealed, guard, err)
		}
	}
}

// TestLabel: a label names the key of a value, also the one inside of a KMS, and is short for
// every value.
func TestLabel(t *testing.T) {
	object := func(id string) string {
		data := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), []byte("data"))
		data = protowire.AppendString(protowire.AppendTag(data, keyIDField, protowire.BytesType), id)
		return string(protowire.AppendVarint(protowire.AppendTag(data, 5, protowire.VarintType), 1))
	}
	long := strings.Repeat("x", 1000)
	for stored, want := range map[string]string{
		"clear":                                  "",
		"k8s:enc:aescbc:v1:k1:x:y":               "k8s:enc:aescbc:v1:k1",
		"k8s:enc:barque:v1:one:x":                "k8s:enc:barque:v1:one",
		"k8s:enc:kms:v2:vault:" + object("one"):  LabelOfKMS("vault", "one"),
		"k8s:enc:kms:v2:vault:" + object("a\n"):  LabelOfKMS("vault", "a\n"),
		"k8s:enc:kms:v2:vault:" + object(long):   LabelOfKMS("vault", long),
		"k8s:enc:kms:v2:vault:" + object("")[:3]: "k8s:enc:kms:v2:vault",
		"k8s:enc:kms:v2:vault:\xff\xff":          "k8s:enc:kms:v2:vault",
		"k8s:enc:kms:v2:vault":                   "k8s:enc:kms:v2:vault",
	} {
		got := Label([]byte(stored))
		if got != want || len(got) > 120 || strings.ContainsAny(got, "\n") {
			t.Errorf("%q is under %q, want %q", stored, got, want)
		}
	}
	if LabelOfKMS("vault", long) == LabelOfKMS("vault", long+"x") {
		t.Error("two keys have one label")
	}
}

// counted counts how often values are decrypted.
type counted struct {
	*boxed
	opened map[string]int
}

func (c counted) TransformFromStorage(ctx context.Context, stored []byte, at value.Context) ([]byte, bool, error) {
	c.opened[string(at.AuthenticatedData())]++
	return c.boxed.TransformFromStorage(ctx, stored, at)
}

type countedFile struct {
	file
	with counted
}

func (f countedFile) Now() Providers                            { return f }
func (f countedFile) Of(resource schema.GroupResource) Provider { return f.with }

// TestRewriteOpensOnce: a value of the provider's key is read once by a look, and one of another
// key is not read to see that.
func TestRewriteOpensOnce(t *testing.T) {
	e := &Epoch{Writes: "one", File: "h", Labels: []string{"k8s:enc:secretbox:v1:k1"}, Resources: []string{"secrets"}}
	s := newStores(t, &ring{epoch: e, keys: map[string][]byte{"one": key(1)}})
	with := counted{&boxed{label: "k8s:enc:secretbox:v1:k1:"}, map[string]int{}}
	s.transformers.Use(countedFile{file{hash: "h"}, with})
	sealed, err := s.transformers.Seal(t.Context(), "one", []byte("x"), place("/registry/secrets/ns/own"))
	for key, value := range map[string][]byte{"own": sealed, "good": []byte("k8s:enc:secretbox:v1:k1:x"),
		"clear": []byte("x")} {
		if err == nil {
			_, err = s.backend.Put(t.Context(), "/registry/secrets/ns/"+key, value)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	o := &Objects{Store: s.backend, Transformers: s.transformers, Now: time.Now}
	if n, err := o.Count(t.Context(), e); err != nil || n.Clear != 1 || n.Other != 2 || len(with.opened) != 0 {
		t.Errorf("%+v, opened %v, %v", n, with.opened, err)
	}
	found, err := o.look(t.Context(), must(o.Store.View(t.Context(), raftstore.ViewOptions{}))(t), o.forms(e))
	if err != nil || len(found.stale) != 2 || with.opened["/registry/secrets/ns/good"] != 1 || len(with.opened) != 1 {
		t.Errorf("%+v, opened %v, %v", found, with.opened, err)
	}
}

func must[T any](value T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}
