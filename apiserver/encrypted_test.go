package apiserver

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/barque/barque/apiserver/encryption"
	"github.com/barque/barque/raftstore"
)

// oneKey is a state of the data keys that a test changes.
type oneKey struct {
	now atomic.Pointer[encryption.Epoch]
	off error // why it does not have another key
}

func (k *oneKey) Epoch(context.Context) (*encryption.Epoch, error) { return k.now.Load(), nil }
func (*oneKey) Renew(context.Context) error                        { return nil }
func (k *oneKey) Key(_ context.Context, id string) ([]byte, error) {
	if id != "one" {
		return nil, k.off
	}
	return bytes.Repeat([]byte{1}, 32), nil
}

// TestEncryptedWhereItIs: for every resource that can be named, its objects are found where the
// server stores them: its own, those of the libraries, and custom ones.
func TestEncryptedWhereItIs(t *testing.T) {
	const guard = "/barque/data-keys"
	keys := new(oneKey)
	keys.now.Store(&encryption.Epoch{})
	transformers := encryption.New(keys, guard)
	c := startCluster(t, func(c *Config) { c.Transformers = transformers })
	c.define(t, boats)
	boat := schema.GroupVersionResource{Group: "sea.example.com", Version: "v1", Resource: "boats"}
	if _, err := c.admin.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "sea"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "sailor"}}
	if _, err := c.admin.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	if _, err := c.admin.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	service := schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}
	if _, err := c.dynamic(t).Resource(service).Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
		"metadata": map[string]any{"name": "v1.far.example.com"},
		"spec": map[string]any{"group": "far.example.com", "version": "v1", "groupPriorityMinimum": int64(100),
			"versionPriority":       int64(100),
			"insecureSkipTLSVerify": true, "service": map[string]any{"namespace": "sea", "name": "far"}}}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, "a boat", func(ctx context.Context) (error, bool) {
		_, err := c.dynamic(t).Resource(boat).Namespace("sea").Create(ctx,
			&unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "sea.example.com/v1", "kind": "Boat", "metadata": map[string]any{"name": "b"},
				"spec": map[string]any{}}}, metav1.CreateOptions{})
		return err, err == nil
	})
	backend := c.cfg.Store.(encryption.Store)
	objects := &encryption.Objects{Store: backend, Transformers: transformers, Now: time.Now}
	epoch := &encryption.Epoch{Writes: "one"}
	paths := map[string]string{
		"customresourcedefinitions.apiextensions.k8s.io": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
		"apiservices.apiregistration.k8s.io":             "/apis/apiregistration.k8s.io/v1/apiservices",
		"boats.sea.example.com":                          "/apis/sea.example.com/v1/boats",
		"namespaces":                                     "/api/v1/namespaces",
		"clusterroles.rbac.authorization.k8s.io":         "/apis/rbac.authorization.k8s.io/v1/clusterroles",
		"nodes":                                          "/api/v1/nodes", // which are stored as minions
	}
	for name, path := range paths {
		resource, err := transformers.Resolve(t.Context(), name,
			c.extensions(t).ApiextensionsV1().CustomResourceDefinitions())
		if err != nil {
			t.Fatal(err)
		}
		epoch.Resources = append(epoch.Resources, resource)
		c.atRest(t, func() {
			var list metav1.PartialObjectMetadataList
			if err := c.admin.Discovery().RESTClient().Get().AbsPath(path).SetHeader("Accept",
				"application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1").Do(t.Context()).Into(
				&list); err != nil {
				t.Fatal(err)
			}
			if n, err := objects.Count(t.Context(), &encryption.Epoch{Resources: []string{resource}}); err != nil ||
				n.Clear != len(list.Items) || len(list.Items) == 0 {
				t.Errorf("%s: %d of %d are found, %v", name, n.Clear, len(list.Items), err)
			}
		})
	}
	set, err := c.cfg.Store.Commit(t.Context(),
		raftstore.Txn{Ops: []raftstore.Op{{Kind: raftstore.Put, Key: guard, Value: []byte("one")}}})
	if err != nil {
		t.Fatal(err)
	}
	epoch.Revision = set.Revision
	keys.now.Store(epoch)
	if err := objects.Rewrite(t.Context(), 0, epoch, func(int) {}); err != nil {
		t.Fatal(err)
	}
	c.define(t, strings.NewReplacer("boat", "raft", "Boat", "Raft", "[bt]", "[rt]").Replace(boats))
	view, err := backend.View(t.Context(), raftstore.ViewOptions{})
	if err != nil {
		t.Fatal(err)
	}
	view.Ascend("/registry/", "", func(item raftstore.Item) bool {
		for _, word := range []string{"CustomResourceDefinition", `"Boat"`, "APIService"} {
			if bytes.Contains(item.Value, []byte(word)) && !strings.HasPrefix(item.Key, "/registry/clusterroles/") {
				t.Errorf("%s is in clear", item.Key)
			}
		}
		return true
	})
	for name, path := range paths {
		if status, body := c.raw(t, path, nil); status != 200 {
			t.Errorf("%s: %d %s", name, status, body)
		}
	}
	var refused *encryption.ResourceError
	if _, err := transformers.Resolve(t.Context(), "boat.sea.example.com",
		c.extensions(t).ApiextensionsV1().CustomResourceDefinitions()); !errors.As(err, &refused) {
		t.Errorf("a resource that there is not: %v", err)
	}
}

// TestLostObject: only the option for it deletes an object that no server can decrypt, and it does
// not delete one whose key only this server lacks.
func TestLostObject(t *testing.T) {
	keys := new(oneKey)
	keys.now.Store(&encryption.Epoch{Resources: []string{"secrets"}, Writes: "one"})
	c := startCluster(t, func(c *Config) { c.Transformers = encryption.New(keys, "/barque/data-keys") })
	newNamespace(t, c, "lost")
	secrets, yes := c.admin.CoreV1().Secrets("lost"), true
	if _, err := secrets.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	const key = "/registry/secrets/lost/s"
	view, err := c.cfg.Store.View(t.Context(), raftstore.ViewOptions{})
	if err != nil {
		t.Fatal(err)
	}
	item, _ := view.Get(key)
	if encryption.KeyOf(item.Value) != "one" {
		t.Fatalf("%q", item.Value)
	}
	for what, lost := range map[string]error{"the key is not here": errors.New("no key"),
		"the key is gone": encryption.ErrUnlisted} {
		value := bytes.Replace(item.Value, []byte("one:"), []byte("off:"), 1)
		if _, err := c.cfg.Store.Commit(t.Context(),
			raftstore.Txn{Ops: []raftstore.Op{{Kind: raftstore.Put, Key: key, Value: value}}}); err != nil {
			t.Fatal(err)
		}
		keys.off = lost
		if _, err := secrets.Get(t.Context(), "s", metav1.GetOptions{}); err == nil {
			t.Errorf("%s: it is read", what)
		}
		if err := secrets.Delete(t.Context(), "s", metav1.DeleteOptions{}); err == nil {
			t.Errorf("%s: it is deleted without the option", what)
		}
		err := secrets.Delete(t.Context(), "s",
			metav1.DeleteOptions{IgnoreStoreReadErrorWithClusterBreakingPotential: &yes})
		if (err == nil) != errors.Is(lost, encryption.ErrUnlisted) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
