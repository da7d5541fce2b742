package storage

import (
	"context"
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apiserver/pkg/apis/example"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	"k8s.io/apiserver/pkg/storage"
	storagetesting "k8s.io/apiserver/pkg/storage/testing"
)

const (
	benchmarkNamespaces = 10
	benchmarkPods       = 500 // in each
	benchmarkNodes      = 100
)

func newBenchmark(b *testing.B, opts envOptions) (*env, storagetesting.BenchmarkData) {
	b.Helper()
	opts.codec = protobufCodec()
	e := newEnv(b, opts)
	e.increase(e.ctx, b) // these benchmarks count revisions from 2, as in an etcd
	data := storagetesting.PrepareBenchmarkData(benchmarkNamespaces, benchmarkPods, benchmarkNodes)
	if err := storagetesting.PrecreateBenchmarkPods(e.ctx, e.store, data); err != nil {
		b.Fatal(err)
	}
	return e, data
}

func BenchmarkStoreList(b *testing.B) {
	for _, cached := range []bool{false, true} {
		b.Run(fmt.Sprintf("cached=%v", cached), func(b *testing.B) {
			e, data := newBenchmark(b, envOptions{cached: cached, indexes: true})
			b.ReportAllocs()
			storagetesting.RunBenchmarkStoreList(e.ctx, b, e.store, data, cached)
		})
	}
}

func BenchmarkStoreStats(b *testing.B) {
	e, _ := newBenchmark(b, envOptions{})
	b.ReportAllocs()
	storagetesting.RunBenchmarkStoreStats(e.ctx, b, e.store)
}

func BenchmarkWriteThroughput(b *testing.B) {
	e := newEnv(b, envOptions{cached: true, indexes: true, codec: protobufCodec()})
	data := storagetesting.PrepareBenchmarkData(benchmarkNamespaces, benchmarkPods, benchmarkNodes)
	b.ReportAllocs()
	storagetesting.RunBenchmarkWriteThroughput(e.ctx, b, e.store, data, true, nil)
}

// protobufCodec encodes as the server does.
func protobufCodec() runtime.Codec {
	scheme, codecs := newExampleScheme()
	pb := protobuf.NewSerializer(scheme, scheme)
	return codecs.CodecForVersions(pb, pb, schema.GroupVersions{examplev1.SchemeGroupVersion}, nil)
}

// onePod prepares a store with one pod and returns its key.
func onePod(b *testing.B) (*env, string) {
	b.Helper()
	e, data := newBenchmark(b, envOptions{})
	pod := data.Pods[0]
	return e, "/pods/" + pod.Namespace + "/" + pod.Name
}

func BenchmarkGet(b *testing.B) {
	e, key := onePod(b)
	b.ReportAllocs()
	for b.Loop() {
		if err := e.store.Get(e.ctx, key, storage.GetOptions{}, &example.Pod{}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkGetList(b *testing.B) {
	e, _ := onePod(b)
	opts := storage.ListOptions{Predicate: storage.Everything, Recursive: true}
	b.ReportAllocs()
	for b.Loop() {
		if err := e.store.GetList(e.ctx, "/pods/", opts, &example.PodList{}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkUpdate(b *testing.B) {
	e, key := onePod(b)
	b.ReportAllocs()
	n := int64(0)
	for b.Loop() {
		n++
		err := e.store.GuaranteedUpdate(e.ctx, key, &example.Pod{}, false, nil,
			storage.SimpleUpdate(func(obj runtime.Object) (runtime.Object, error) {
				obj.(*example.Pod).Generation = n
				return obj, nil
			}), nil)
		if err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkWatch(b *testing.B) {
	e, key := onePod(b)
	w, err := e.store.Watch(context.Background(), "/pods/", storage.ListOptions{
		ResourceVersion: "1", Predicate: storage.Everything, Recursive: true,
	})
	if err != nil {
		b.Fatal(err)
	}
	defer w.Stop()
	for range benchmarkNamespaces * benchmarkPods {
		<-w.ResultChan()
	}
	b.ReportAllocs()
	n := int64(0)
	for b.Loop() {
		n++
		err := e.store.GuaranteedUpdate(e.ctx, key, &example.Pod{}, false, nil,
			storage.SimpleUpdate(func(obj runtime.Object) (runtime.Object, error) {
				obj.(*example.Pod).Generation = n
				return obj, nil
			}), nil)
		if err != nil {
			b.Fatal(err)
		}
		<-w.ResultChan()
	}
}
