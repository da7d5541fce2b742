package apiserver

import (
	"fmt"
	"io"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apistorage "k8s.io/apiserver/pkg/storage"

	"github.com/barque/barque/apiserver/rawlist"
)

// BenchmarkFirstLists lists 5,000 ConfigMaps of 1 KiB that were all changed since the last list, so
// that nothing is known of their stored bytes.
func BenchmarkFirstLists(b *testing.B) {
	const objects = 5000
	w, maps := newTrips(b), newRawMaps(b, rawListCache, true)
	maps.create(b, objects, 1<<10)
	opts := apistorage.ListOptions{Recursive: true, Predicate: apistorage.Everything}
	change := func(obj runtime.Object, _ apistorage.ResponseMeta) (runtime.Object, *uint64, error) {
		m := obj.(*corev1.ConfigMap)
		m.Labels = map[string]string{"changed": m.ResourceVersion}
		return m, nil, nil
	}
	for _, mediaType := range []string{runtime.ContentTypeProtobuf, runtime.ContentTypeJSON} {
		info, _ := runtime.SerializerInfoForMediaType(w.codecs.SupportedMediaTypes(), mediaType)
		encoder := w.codecs.EncoderForVersion(info.Serializer, maps.GroupVersion())
		ctx := taking(b.Context(), mediaType, maps.GroupVersion())
		b.Run(mediaType[len("application/"):], func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				for i := range objects {
					key := fmt.Sprintf("/configmaps/default/map%d", i)
					if err := maps.store.GuaranteedUpdate(b.Context(), key, &corev1.ConfigMap{}, false, nil, change,
						nil); err != nil {
						b.Fatal(err)
					}
				}
				if _, err := maps.list(b.Context(), opts); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
				list, err := maps.list(ctx, opts)
				if err != nil {
					b.Fatal(err)
				}
				if _, raw := list.(*rawlist.List); !raw {
					b.Fatalf("the list is a %T", list)
				}
				if err := encoder.Encode(list, io.Discard); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
