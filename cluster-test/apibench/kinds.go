package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/barque/barque/cluster-test/kubeapiserver"
)

// kind is one of the objects that cases read and write.
type kind struct {
	many         string // as progress names them
	root, plural string // of paths
	// encodings are those that servers take. Objects are laid, and written while others watch, in
	// the first one.
	encodings []encoding
	object    func(namespace, name string, n uint64) object
	// definition is that of a custom kind. An update of a custom resource must have the
	// resourceVersion of the object that it replaces.
	definition *apiextensionsv1.CustomResourceDefinition
}

type object interface {
	runtime.Object
	metav1.Object
}

var (
	configMaps = &kind{
		many: "ConfigMaps", root: "/api/v1", plural: "configmaps",
		encodings: []encoding{inProtobuf, inJSON},
		object:    func(namespace, name string, n uint64) object { return configMap(namespace, name, n) },
	}
	customResources = &kind{
		many: "custom resources", root: "/apis/" + customGroup + "/v1", plural: customPlural,
		encodings: []encoding{inJSON}, definition: customDefinition(),
		object: func(namespace, name string, n uint64) object { return customResource(namespace, name, n) },
	}
	kinds = []*kind{configMaps, customResources}
)

// path leads to an object, or to all of a namespace when there is no name.
func (k *kind) path(namespace, name string) string {
	return strings.TrimSuffix(k.root+"/namespaces/"+namespace+"/"+k.plural+"/"+name, "/")
}

func configMap(namespace, name string, n uint64) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Data:       map[string]string{"data": data(n)},
	}
}

// data is a text that brings an object to its size.
func data(n uint64) string { return fmt.Sprintf("%0*d", size, n) }

const (
	customGroup  = "apibench.barque.example"
	customKind   = "Parcel"
	customPlural = "parcels"
)

// customResource leaves the field out that has a default.
func customResource(namespace, name string, n uint64) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": customGroup + "/v1", "kind": customKind,
		"metadata": map[string]any{"namespace": namespace, "name": name},
		"spec":     map[string]any{"data": data(n), "class": "express"},
	}}
}

func customDefinition() *apiextensionsv1.CustomResourceDefinition {
	raw := func(value string) apiextensionsv1.JSON { return apiextensionsv1.JSON{Raw: []byte(value)} }
	classes := []apiextensionsv1.JSON{raw(`"standard"`), raw(`"express"`)}
	least, usual := 0.0, raw("3")
	spec := apiextensionsv1.JSONSchemaProps{
		Type: "object", Required: []string{"data"},
		Properties: map[string]apiextensionsv1.JSONSchemaProps{
			"data":     {Type: "string"},
			"class":    {Type: "string", Enum: classes},
			"attempts": {Type: "integer", Format: "int32", Minimum: &least, Default: &usual},
		},
	}
	status := apiextensionsv1.JSONSchemaProps{
		Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"phase": {Type: "string"}},
	}
	return namespaced(customGroup, customKind, customPlural, spec, status)
}

// define makes the definition of a custom kind, and waits until each server takes its objects.
func (l *load) define(ctx context.Context, k *kind) error {
	if err := define(ctx, l.Side, k.definition); err != nil {
		return err
	}
	path, e := k.path(laid, "")+"?dryRun=All", k.encodings[0]
	for i := range l.Servers { // the first clients have one each
		err := kubeapiserver.Retry(ctx, nil, func() error {
			_, err := l.clients[i].write(ctx, http.MethodPost, path, e, k.object(laid, "trial", 0))
			return err
		})
		if err != nil {
			return fmt.Errorf("server %d does not take %s: %w", i+1, k.many, err)
		}
	}
	return nil
}

// laidName is that of the nth object in laid and long.
func laidName(n int) string { return fmt.Sprintf("c%d", n) }

// update writes one of the laid objects anew. Each client has objects of its own: none waits for
// another, and nothing conflicts.
func (l *load) update(ctx context.Context, c testCase, i int) (answer, error) {
	n := rand.IntN(objects/mostClient)*mostClient + i
	obj := c.kind.object(laid, laidName(n), rand.Uint64())
	if c.kind.definition == nil {
		return l.clients[i].write(ctx, http.MethodPut, c.kind.path(laid, laidName(n)), c.encoding, obj)
	}
	obj.SetResourceVersion(l.versions[n])
	body, err := c.encoding.encode(obj)
	if err != nil {
		return answer{}, err
	}
	a, err := l.noting(ctx, c.kind, i, n, http.MethodPut, body)
	if err != nil { // it may have been written all the same
		_, readErr := l.noting(ctx, c.kind, i, n, http.MethodGet, nil)
		err = errors.Join(err, readErr)
	}
	return a, err
}

// noting has a client send a request for the nth laid object of a custom kind, and notes the
// resourceVersion that is answered.
func (l *load) noting(
	ctx context.Context, k *kind, client, n int, method string, body []byte,
) (answer, error) {
	var said bytes.Buffer
	path, e := k.path(laid, laidName(n)), k.encodings[0]
	a, err := l.clients[client].copy(ctx, &said, method, path, e, body)
	if err != nil {
		return a, err
	}
	l.versions[n], err = versionIn(said.Bytes())
	return a, err
}

// versionIn finds the resourceVersion of an object in JSON without decoding it. No other part of
// such an object has that name.
func versionIn(data []byte) (string, error) {
	_, rest, _ := bytes.Cut(data, []byte(`"resourceVersion":"`))
	version, _, found := bytes.Cut(rest, []byte{'"'})
	if !found {
		return "", fmt.Errorf("an object without a resourceVersion: %.300s", data)
	}
	return string(version), nil
}
