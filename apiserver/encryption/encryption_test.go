package encryption

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/features"
	kstorage "k8s.io/apiserver/pkg/storage"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/kubernetes/scheme"
	featuregatetesting "k8s.io/component-base/featuregate/testing"

	"github.com/barque/barque/apiserver/objectcache"
	"github.com/barque/barque/apiserver/rawlist"
	"github.com/barque/barque/apiserver/storage"
	"github.com/barque/barque/raftstore"
)

const guardKey = "/barque/data-keys"

// ring is a state of keys that a test changes.
type ring struct {
	epoch   *Epoch
	next    *Epoch // after Renew
	keys    map[string][]byte
	missing error // of a key that it does not have; nil: this server alone does not have it
	unknown error // of the Epoch
}

func (r *ring) Epoch(context.Context) (*Epoch, error) {
	if r.unknown != nil {
		return nil, r.unknown
	}
	return r.epoch, nil
}

func (r *ring) Renew(context.Context) error {
	r.epoch = r.next
	return nil
}

func (r *ring) Key(_ context.Context, id string) ([]byte, error) {
	if key := r.keys[id]; key != nil {
		return key, nil
	}
	if r.missing != nil {
		return nil, fmt.Errorf("data key %s is not on this server: %w", id, r.missing)
	}
	return nil, fmt.Errorf("data key %s is not on this server", id)
}

// stores are the stores of Secrets and ConfigMaps over one backend.
type stores struct {
	backend            *raftstore.Store
	secrets, configs   kstorage.Interface
	transformers       *Transformers
	secretKey, conf    string // keys of a Secret and a ConfigMap for the registries
	storedKey, confKey string // and in the backend
}

func newStores(t testing.TB, keys Keys) *stores {
	t.Helper()
	s := &stores{backend: raftstore.NewInMemory(raftstore.Options{}), transformers: New(keys, guardKey)}
	t.Cleanup(func() { s.backend.Close() })
	info, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	codec := scheme.Codecs.CodecForVersions(info.Serializer, scheme.Codecs.UniversalDeserializer(),
		corev1.SchemeGroupVersion, corev1.SchemeGroupVersion)
	for _, r := range []string{"secrets", "configmaps"} {
		s.transformers.Place(schema.GroupResource{Resource: r}, "/registry/"+r+"/")
	}
	open := func(resource string, newObject, newList func() runtime.Object) kstorage.Interface {
		of := schema.GroupResource{Resource: resource}
		store, err := storage.New(
			storage.Config{Backend: s.backend, Codec: codec, New: newObject, NewList: newList,
				RawLists: rawlist.NewCache(1 << 20),
				Objects:  objectcache.New(1 << 20), Prefix: "/registry", ResourcePrefix: "/" + resource,
				GroupResource: of,
				Transformer:   s.transformers.TransformerForResource(of)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(store.Close)
		return store
	}
	s.secrets = open("secrets", func() runtime.Object { return new(corev1.Secret) },
		func() runtime.Object { return new(corev1.SecretList) })
	s.configs = open("configmaps", func() runtime.Object { return new(corev1.ConfigMap) },
		func() runtime.Object { return new(corev1.ConfigMapList) })
	s.secretKey, s.storedKey = "/secrets/ns/s", "/registry/secrets/ns/s"
	s.conf, s.confKey = "/configmaps/ns/c", "/registry/configmaps/ns/c"
	return s
}

func (s *stores) stored(t *testing.T, key string) []byte {
	t.Helper()
	view, err := s.backend.View(t.Context(), raftstore.ViewOptions{})
	if err != nil {
		t.Fatal(err)
	}
	item, _ := view.Get(key)
	return item.Value
}

func secret(text string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"},
		Data: map[string][]byte{"k": []byte(text)}}
}

func read(t *testing.T, s *stores) (string, error) {
	t.Helper()
	var got corev1.Secret
	err := s.secrets.Get(t.Context(), s.secretKey, kstorage.GetOptions{}, &got)
	return string(got.Data["k"]), err
}

func update(ctx context.Context, s *stores, text string) error {
	return s.secrets.GuaranteedUpdate(ctx, s.secretKey, new(corev1.Secret), false, nil,
		func(now runtime.Object, _ kstorage.ResponseMeta) (runtime.Object, *uint64, error) {
			out := now.(*corev1.Secret).DeepCopy()
			out.Data["k"] = []byte(text)
			return out, nil, nil
		}, nil)
}

func key(b byte) []byte { return bytes.Repeat([]byte{b}, 32) }

// TestObjectsUnderKeys: covered resources are encrypted by the newest state of the keys, even if
// the writer knew an older one, and other resources are stored in clear.
func TestObjectsUnderKeys(t *testing.T) {
	keys := &ring{epoch: &Epoch{Resources: []string{"secrets"}}, keys: map[string][]byte{"one": key(1), "two": key(2)}}
	s := newStores(t, keys)
	ctx := t.Context()
	if err := s.secrets.Create(ctx, s.secretKey, secret("hidden-1"), new(corev1.Secret), 0); err != nil {
		t.Fatal(err)
	}
	config := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", Labels: map[string]string{"a": "b"}},
		Data:       map[string]string{"k": "public"}}
	if err := s.configs.Create(ctx, s.conf, config, new(corev1.ConfigMap), 0); err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(s.stored(t, s.storedKey), []byte("hidden-1")) ||
		!bytes.Contains(s.stored(t, s.confKey), []byte("public")) {
		t.Fatal("nothing is encrypted yet")
	}
	for i, id := range []string{"one", "two", ""} {
		result, err := s.backend.Put(ctx, guardKey, []byte(id))
		if err != nil {
			t.Fatal(err)
		}
		keys.next = &Epoch{Revision: result.Revision, Resources: []string{"secrets"}, Writes: id}
		text := fmt.Sprintf("hidden-%d", i+2)
		if err := update(ctx, s, text); err != nil { // by a writer that knows the state before
			t.Fatal(err)
		}
		if value := s.stored(t, s.storedKey); KeyOf(value) != id || (id != "") == bytes.Contains(value, []byte(text)) {
			t.Errorf("under %q, want %q: %q", KeyOf(value), id, value)
		}
		if got, err := read(t, s); err != nil || got != text {
			t.Errorf("%q, %v", got, err)
		}
		for _, selector := range []kstorage.SelectionPredicate{kstorage.Everything} {
			var list corev1.SecretList
			if err := s.secrets.GetList(ctx, "/secrets/", kstorage.ListOptions{Recursive: true, Predicate: selector},
				&list); err != nil || len(list.Items) != 1 || string(list.Items[0].Data["k"]) != text {
				t.Errorf("%+v, %v", list, err)
			}
		}
	}
	// An update that changes nothing still brings the object under the key of now.
	result, err := s.backend.Put(ctx, guardKey, []byte("two again"))
	if err != nil {
		t.Fatal(err)
	}
	keys.epoch = &Epoch{Revision: result.Revision, Resources: []string{"secrets"}, Writes: "two"}
	if err := update(ctx, s, "hidden-4"); err != nil || KeyOf(s.stored(t, s.storedKey)) != "two" {
		t.Errorf("under %q, %v", KeyOf(s.stored(t, s.storedKey)), err)
	}
	if !bytes.Contains(s.stored(t, s.confKey), []byte("public")) {
		t.Error("a ConfigMap is encrypted")
	}
}

// anyway is how an object that cannot be read is deleted.
func anyway(ctx context.Context, s *stores) error {
	return s.secrets.Delete(ctx, s.secretKey, new(corev1.Secret), nil,
		func(context.Context, runtime.Object) error { return nil }, nil,
		kstorage.DeleteOptions{ExpectTransformOrDecodeError: true})
}

// TestMissingKey: an object whose key this server lacks is an error for every reader, and is not
// changed, even by a deletion of corrupt objects.
func TestMissingKey(t *testing.T) {
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate,
		features.AllowUnsafeMalformedObjectDeletion, true)
	keys := &ring{epoch: &Epoch{Resources: []string{"secrets"}, Writes: "one"}, keys: map[string][]byte{"one": key(1)}}
	s := newStores(t, keys)
	if err := s.secrets.Create(t.Context(), s.secretKey, secret("hidden"), nil, 0); err != nil {
		t.Fatal(err)
	}
	was := s.stored(t, s.storedKey)
	without := &ring{epoch: &Epoch{Resources: []string{"secrets"}, Writes: "two"},
		keys: map[string][]byte{"two": key(2)}}
	other := newStores(t, without)
	if _, err := other.backend.Put(t.Context(), s.storedKey, was); err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	objects := &Objects{Store: other.backend, Transformers: other.transformers, Now: time.Now}
	for _, missing := range []error{nil, raftstore.ErrLeaderless, context.DeadlineExceeded} {
		without.missing = missing
		for what, do := range map[string]func() error{
			"get":    func() error { _, err := read(t, other); return err },
			"update": func() error { return update(ctx, other, "other") },
			"list": func() error {
				return other.secrets.GetList(ctx, "/secrets/",
					kstorage.ListOptions{Recursive: true, Predicate: kstorage.Everything}, new(corev1.SecretList))
			},
			"delete": func() error {
				return other.secrets.Delete(ctx, other.secretKey, new(corev1.Secret), nil,
					func(context.Context, runtime.Object) error { return nil }, nil, kstorage.DeleteOptions{})
			},
			"delete as corrupt": func() error { return anyway(ctx, other) },
			"rewrite":           func() error { return objects.Rewrite(ctx, 1, without.epoch, func(int) {}) },
		} {
			err := do()
			if err == nil || missing == nil && !strings.Contains(err.Error(), "data key one is not on this server") {
				t.Errorf("%v: %s: %v", missing, what, err)
			}
			if kstorage.IsCorruptObject(err) {
				t.Errorf("%v: %s calls it corrupt: %v", missing, what, err)
			}
		}
		if err := other.secrets.Create(ctx, other.secretKey, secret("other"), nil, 0); err == nil {
			t.Error("it is made anew over the one that is there")
		}
		if !bytes.Equal(other.stored(t, s.storedKey), was) {
			t.Fatalf("%v: it was changed", missing)
		}
	}
}

// TestWritesInClearNeedNoKeys: resources that can never be encrypted, such as the leases of nodes,
// can be written while the state of the keys is damaged, or cannot be read.
func TestWritesInClearNeedNoKeys(t *testing.T) {
	damaged := errors.New("the state of the data keys is damaged")
	transformers := New(&ring{unknown: damaged}, guardKey)
	for _, of := range never {
		sealer := transformers.TransformerForResource(of).(storage.Sealer)
		data, guard, err := sealer.Seal(t.Context(), []byte("clear"), place("/registry/x"))
		if string(data) != "clear" || guard != (raftstore.Precondition{}) || err != nil {
			t.Errorf("%s is written as %q, on the condition %+v: %v", of, data, guard, err)
		}
	}
	secrets := transformers.TransformerForResource(schema.GroupResource{Resource: "secrets"}).(storage.Sealer)
	if data, _, err := secrets.Seal(t.Context(), []byte("clear"), place("/registry/x")); !errors.Is(err, damaged) {
		t.Errorf("a Secret is written as %q: %v", data, err)
	}
}

// TestLostValues: an object that no server can read any more can be deleted as a corrupt object.
func TestLostValues(t *testing.T) {
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate,
		features.AllowUnsafeMalformedObjectDeletion, true)
	keys := &ring{epoch: &Epoch{Resources: []string{"secrets"}, Writes: "one"}, keys: map[string][]byte{"one": key(1)},
		missing: ErrUnlisted}
	s := newStores(t, keys)
	if err := s.secrets.Create(t.Context(), s.secretKey, secret("hidden"), nil, 0); err != nil {
		t.Fatal(err)
	}
	good := s.stored(t, s.storedKey)
	changed := slices.Clone(good)
	changed[len(changed)-1] ^= 1
	for what, value := range map[string][]byte{"changed": changed,
		"its key is gone": bytes.Replace(good, []byte("one:"), []byte("nil:"), 1), "cut": []byte(Prefix + "one")} {
		if _, err := s.backend.Put(t.Context(), s.storedKey, value); err != nil {
			t.Fatal(err)
		}
		if _, err := read(t, s); !kstorage.IsCorruptObject(err) {
			t.Errorf("%s: %v", what, err)
		}
		if err := anyway(t.Context(), s); err != nil || s.stored(t, s.storedKey) != nil {
			t.Errorf("%s: it is not deleted: %v", what, err)
		}
	}
	if _, err := s.backend.Put(t.Context(), s.storedKey, good); err != nil {
		t.Fatal(err)
	}
	keys.unknown = raftstore.ErrLeaderless
	if text, err := read(t, s); err != nil || text != "hidden" {
		t.Errorf("without the state of the keys, %q, %v", text, err)
	}
	if err := anyway(t.Context(), s); err == nil || s.stored(t, s.storedKey) == nil {
		t.Errorf("a good object is deleted as a corrupt one: %v", err)
	}
}

// TestBadValues: a value that was changed, moved, cut, or encrypted by another program is an error.
func TestBadValues(t *testing.T) {
	keys := &ring{epoch: &Epoch{Resources: []string{"secrets"}, Writes: "one"}, keys: map[string][]byte{"one": key(1)}}
	s := newStores(t, keys)
	if err := s.secrets.Create(t.Context(), s.secretKey, secret("hidden"), nil, 0); err != nil {
		t.Fatal(err)
	}
	good := s.stored(t, s.storedKey)
	flipped := slices.Clone(good)
	flipped[len(flipped)-1] ^= 1
	for what, c := range map[string]struct {
		at    string
		value []byte
	}{
		"changed": {s.storedKey, flipped}, "moved": {"/registry/secrets/ns/other", good},
		"cut":   {s.storedKey, good[:len(good)-20]},
		"short": {s.storedKey, []byte(Prefix + "one:")}, "no key": {s.storedKey, []byte(Prefix)},
		"another provider": {s.storedKey, []byte("k8s:enc:kms:v2:name:data")},
	} {
		if data, _, err := s.transformers.Open(t.Context(), c.value, place(c.at)); err == nil {
			t.Errorf("%s: %q", what, data)
		}
	}
	if data, id, err := s.transformers.Open(t.Context(), good, place(s.storedKey)); err != nil || id != "one" ||
		!bytes.Contains(data, []byte("hidden")) {
		t.Errorf("%q, %q, %v", data, id, err)
	}
}

// TestFirstWriteOfANewlyNamedResource: a writer that knows a state which does not name its
// resource stores nothing in clear once a newer state does. Resources that can never be encrypted
// are not guarded.
func TestFirstWriteOfANewlyNamedResource(t *testing.T) {
	keys := &ring{epoch: &Epoch{Resources: []string{"secrets"}, Writes: "one"}, keys: map[string][]byte{"one": key(1)}}
	s := newStores(t, keys)
	result, err := s.backend.Put(t.Context(), guardKey, []byte("with configmaps"))
	if err != nil {
		t.Fatal(err)
	}
	keys.next = &Epoch{Revision: result.Revision, Resources: []string{"secrets", "configmaps"}, Writes: "one"}
	config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c"},
		Data: map[string]string{"k": "public"}}
	if err := s.configs.Create(t.Context(), s.conf, config, new(corev1.ConfigMap), 0); err != nil {
		t.Fatal(err)
	}
	if value := s.stored(t, s.confKey); KeyOf(value) != "one" {
		t.Errorf("it is stored in clear: %q", value)
	}
	for resource, want := range map[schema.GroupResource]string{
		{Resource: "configmaps"}: guardKey, {Group: "example.com", Resource: "widgets"}: guardKey,
		{Resource: "events"}: "", {Group: "coordination.k8s.io", Resource: "leases"}: "",
	} {
		sealer := s.transformers.TransformerForResource(resource).(storage.Sealer)
		if _, guard, err := sealer.Seal(t.Context(), []byte("x"), place("/x")); err != nil || guard.Key != want {
			t.Errorf("%s: %+v, %v", resource, guard, err)
		}
	}
}

// TestWriterThatNeverCatchesUp: a write whose state of the keys cannot be learned fails, and is not
// made.
func TestWriterThatNeverCatchesUp(t *testing.T) {
	keys := &failing{
		ring{epoch: &Epoch{Resources: []string{"secrets"}, Writes: "one"}, keys: map[string][]byte{"one": key(1)}}}
	s := newStores(t, keys)
	if _, err := s.backend.Put(t.Context(), guardKey, []byte("changed")); err != nil {
		t.Fatal(err)
	}
	if err := s.secrets.Create(t.Context(), s.secretKey, secret("hidden"), nil, 0); err == nil ||
		s.stored(t, s.storedKey) != nil {
		t.Errorf("%v, %q", err, s.stored(t, s.storedKey))
	}
}

type failing struct{ ring }

func (*failing) Renew(context.Context) error { return errors.New("no leader") }

// TestUnreadableObjectsAreNamedInOrder: the same objects are the same error, in any order of reads.
func TestUnreadableObjectsAreNamedInOrder(t *testing.T) {
	keys := &ring{epoch: &Epoch{Resources: []string{"secrets"}, Writes: "one"}, keys: map[string][]byte{"one": key(1)}}
	s := newStores(t, keys)
	for i := range 40 {
		if _, err := s.backend.Put(t.Context(), fmt.Sprintf("/registry/secrets/ns/s%02d", i),
			[]byte(Prefix+"gone:x")); err != nil {
			t.Fatal(err)
		}
	}
	objects, first := &Objects{Store: s.backend, Transformers: s.transformers, Now: time.Now}, ""
	for range 20 {
		err := objects.Rewrite(t.Context(), 1, keys.epoch, func(int) {})
		if err == nil || first != "" && err.Error() != first || !strings.Contains(err.Error(), "secrets/ns/s00") {
			t.Fatalf("%v, and before %s", err, first)
		}
		first = err.Error()
	}
}
