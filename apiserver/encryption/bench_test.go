package encryption

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kstorage "k8s.io/apiserver/pkg/storage"
)

// BenchmarkSecrets creates and lists Secrets of 1 KiB, in clear and encrypted, on a store in
// memory. A ConfigMap is not encrypted in either.
func BenchmarkSecrets(b *testing.B) {
	for _, writes := range []string{"", "one"} {
		name := map[string]string{"": "clear", "one": "encrypted"}[writes]
		s := newStores(b,
			&ring{epoch: &Epoch{Resources: []string{"secrets"}, Writes: writes},
				keys: map[string][]byte{"one": key(1)}})
		text, n := strings.Repeat("x", 1<<10), 0
		b.Run("create/"+name, func(b *testing.B) {
			for b.Loop() {
				n++
				if err := s.secrets.Create(b.Context(), fmt.Sprintf("/secrets/made/s%d", n), secret(text),
					new(corev1.Secret), 0); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run("create a ConfigMap/"+name, func(b *testing.B) {
			for b.Loop() {
				n++
				config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "made", Name: fmt.Sprint("c", n)},
					Data: map[string]string{"k": text}}
				if err := s.configs.Create(b.Context(), fmt.Sprintf("/configmaps/made/c%d", n), config,
					new(corev1.ConfigMap), 0); err != nil {
					b.Fatal(err)
				}
			}
		})
		for i := range 1000 {
			if err := s.secrets.Create(b.Context(), fmt.Sprintf("/secrets/ns/s%d", i), secret(text), nil,
				0); err != nil {
				b.Fatal(err)
			}
			config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint("c", i)},
				Data: map[string]string{"k": text}}
			if err := s.configs.Create(b.Context(), fmt.Sprintf("/configmaps/ns/c%d", i), config, nil, 0); err != nil {
				b.Fatal(err)
			}
		}
		everything := kstorage.ListOptions{Recursive: true, Predicate: kstorage.Everything}
		b.Run("list 1000/"+name, func(b *testing.B) {
			for b.Loop() {
				if err := s.secrets.GetList(b.Context(), "/secrets/ns/", everything,
					new(corev1.SecretList)); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run("list 1000 ConfigMaps/"+name, func(b *testing.B) {
			for b.Loop() {
				if err := s.configs.GetList(b.Context(), "/configmaps/ns/", everything,
					new(corev1.ConfigMapList)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkReadable looks whether all values can be read, on a store with 100,000 objects of 1 KiB,
// under the provider of a file.
func BenchmarkReadable(b *testing.B) {
	s := newStores(b, &ring{epoch: &Epoch{Resources: []string{"secrets"}}})
	file := file{providers: map[string]*boxed{"secrets": {label: "k8s:enc:secretbox:v1:k1:"}}}
	s.transformers.Use(file)
	value := []byte("k8s:enc:secretbox:v1:k1:" + strings.Repeat("x", 1<<10))
	for i := range 100_000 {
		if _, err := s.backend.Put(b.Context(), fmt.Sprintf("/registry/secrets/ns/s%d", i), value); err != nil {
			b.Fatal(err)
		}
	}
	o := &Objects{Store: s.backend, Transformers: s.transformers, Now: time.Now}
	for b.Loop() {
		if cannot, err := o.Readable(b.Context()); cannot != nil || err != nil {
			b.Fatal(cannot, err)
		}
	}
}
