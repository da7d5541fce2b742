// Package manifests applies what lies in the directory "manifests" of the servers.
//
// Each server describes its files as Manifest objects (package files), one for each path: the
// servers that have the file, each with the hash of its content. The content itself is in a Secret
// of that hash, because files have passwords too. The leader applies the content that counts.
//
// Invariants:
//   - The same file on several servers is one Manifest and one Secret.
//   - Of different contents the one that was changed last counts, by its turn. The condition Agreed
//     names the servers that differ.
//   - An object goes when no counted content has it any more, and never before the new content was
//     applied as a whole. Before an object is applied the status lists it, so that a leader which
//     ends in the middle leaves nothing that no one prunes.
//   - Only an object that was applied for this Manifest last is pruned.
//   - A content is applied once. What somebody changes by hand stays until the file changes.
//
// The package does not read directories.
package manifests

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"fmt"
	"io"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Definition is the CustomResourceDefinition of Manifests.
//
//go:embed manifest.yaml
var Definition []byte

// Resource and Kind are those of Manifests.
var (
	Resource = schema.GroupVersionResource{Group: "barque.io", Version: "v1", Resource: "manifests"}
	Kind     = Resource.GroupVersion().WithKind("Manifest")
)

// Bounds of one file, in bytes.
const (
	MaxBytes      = 16 << 20  // of its content
	MaxCompressed = 768 << 10 // in the Secret, whose own bound is 1 MiB
)

// Annotations of applied objects.
const (
	// Owner is the name of the Manifest for which the object was applied last.
	Owner = "barque.io/manifest"
	// Prune is "false" on an object that stays when its file goes.
	Prune = "barque.io/prune"
)

// Conditions of a Manifest.
const (
	// Applied is True when the content that counts was applied as a whole.
	Applied = "Applied"
	// Agreed is True when all servers with the file have the same content.
	Agreed = "Agreed"
)

// Object is a Manifest.
type Object struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              Spec   `json:"spec,omitzero"`
	Status            Status `json:"status,omitzero"`
}

// Spec is described in the definition.
type Spec struct {
	Path    string   `json:"path,omitempty"`
	Sources []Source `json:"sources,omitempty"`
}

// Source is a server that has the file.
type Source struct {
	Server string `json:"server"`
	Hash   string `json:"hash"`
	Turn   int64  `json:"turn"`
}

// Status is described in the definition.
type Status struct {
	Applied    string             `json:"applied,omitempty"`
	Count      int32              `json:"count"`
	Objects    []Ref              `json:"objects,omitempty"`
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Ref names an applied object.
type Ref struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace,omitempty"`
	Name       string `json:"name"`
}

func (r Ref) String() string {
	name := r.Name
	if r.Namespace != "" {
		name = r.Namespace + "/" + r.Name
	}
	return r.Kind + " " + name
}

// Read converts an object of the API.
func Read(u *unstructured.Unstructured) (*Object, error) {
	var o Object
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &o); err != nil {
		return nil, fmt.Errorf("read the Manifest %s: %w", u.GetName(), err)
	}
	return &o, nil
}

// The Secrets of contents are in kube-system. Their names begin with secretPrefix.
const (
	SecretNamespace                   = metav1.NamespaceSystem
	SecretType      corev1.SecretType = "barque.io/manifest"
	secretPrefix                      = "barque-manifest-"
	secretKey                         = "content.gz"
)

// Hash returns the hash of a content.
func Hash(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

// SecretName returns the name of the Secret with the content of a hash.
func SecretName(hash string) string { return secretPrefix + hash }

// hashOf is the hash in the name of a Secret; "" if it is none of a content.
func hashOf(secret *corev1.Secret) string {
	hash, ok := strings.CutPrefix(secret.Name, secretPrefix)
	if !ok || secret.Type != SecretType || secret.Namespace != SecretNamespace {
		return ""
	}
	return hash
}

// Pack makes the Secret of a content.
func Pack(content []byte) (*corev1.Secret, error) {
	if len(content) > MaxBytes {
		return nil, fmt.Errorf("the file has %d bytes; at most %d are applied", len(content), MaxBytes)
	}
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(content); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	if out.Len() > MaxCompressed {
		return nil, fmt.Errorf("the file has %d bytes when it is compressed; at most %d are applied: split it",
			out.Len(), MaxCompressed)
	}
	immutable := true
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: SecretName(Hash(content)), Namespace: SecretNamespace},
		Type:       SecretType, Immutable: &immutable, Data: map[string][]byte{secretKey: out.Bytes()},
	}, nil
}

// unpack returns the content of a Secret. It fails when that is not the content of the Secret's
// name: somebody has made another Secret of that name.
func unpack(secret *corev1.Secret) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(secret.Data[secretKey]))
	if err != nil {
		return nil, fmt.Errorf("read the Secret %s: %w", secret.Name, err)
	}
	content, err := io.ReadAll(io.LimitReader(r, MaxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read the Secret %s: %w", secret.Name, err)
	}
	if len(content) > MaxBytes || Hash(content) != hashOf(secret) {
		return nil, fmt.Errorf("the Secret %s/%s does not have the content of its name: delete it, and the servers "+
			"write it again", secret.Namespace, secret.Name)
	}
	return content, nil
}
