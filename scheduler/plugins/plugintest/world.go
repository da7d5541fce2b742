package plugintest

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	toolscache "k8s.io/client-go/tools/cache"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/utils/clock"

	"github.com/barque/barque/scheduler/cache"
	"github.com/barque/barque/scheduler/framework"
	"github.com/barque/barque/scheduler/plugins/names"
)

// World is a cluster that a profile of some plugins decides about.
type World struct {
	Snapshot  *cache.Snapshot
	Nominator *framework.Nominator
	Profile   *framework.Profile
	Informers informers.SharedInformerFactory

	// The names or UIDs of pods for which a plugin has called the scheduler.
	Evicted, Denominated, Woken, Ungated []string

	// Slow leaves evictions under way until one of Done is called.
	Slow bool
	Done []func(error)

	t     testing.TB
	cache *cache.Cache
}

// Arguments are those of a plugin, among the objects of a World.
type Arguments struct {
	plugin string
	args   runtime.Object
}

// ArgsFor returns arguments of a plugin.
func ArgsFor(plugin string, args runtime.Object) Arguments { return Arguments{plugin, args} }

// New returns a world with a profile of the plugins, and of those that each profile needs. The
// objects are nodes, pods, Arguments, and those that plugins read by informers.
func New(t testing.TB, registry framework.Registry, objects []any, plugins ...string) *World {
	t.Helper()
	w := &World{t: t, cache: cache.New(clock.RealClock{}, 0), Snapshot: cache.NewSnapshot(),
		Nominator: framework.NewNominator()}
	args := map[string]runtime.Object{}
	factory := informers.NewSharedInformerFactory(fake.NewClientset(), 0)
	w.Informers = factory
	add := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, o := range objects {
		switch o := o.(type) {
		case *v1.Node:
			w.cache.SetNode(o)
		case *v1.Pod:
			info, err := framework.NewPodInfo(o)
			add(err)
			w.cache.AddPod(info)
		case Arguments:
			args[o.plugin] = o.args
		case *v1.Service:
			add(factory.Core().V1().Services().Informer().GetStore().Add(o))
		case *v1.Namespace:
			add(factory.Core().V1().Namespaces().Informer().GetStore().Add(o))
		case *policyv1.PodDisruptionBudget:
			add(factory.Policy().V1().PodDisruptionBudgets().Informer().GetStore().Add(o))
		default:
			if informer := volumeInformer(factory, o); informer != nil {
				add(informer.GetStore().Add(o))
			}
		}
	}
	w.cache.Update(w.Snapshot)
	spec := framework.Spec{SchedulerName: "test",
		Plugins: []framework.Enabled{{Name: names.PrioritySort}, {Name: names.DefaultBinder}}, Args: args}
	for _, p := range plugins {
		spec.Plugins = append(spec.Plugins, framework.Enabled{Name: p})
	}
	profile, err := framework.NewProfile(t.Context(), spec, registry, framework.World{
		Client: fake.NewClientset(), Informers: factory, NodeInfos: w.Snapshot,
		Nominator: w.Nominator, Parallel: 1,
		Evict: func(victim, _ *v1.Pod, done func(error)) {
			w.Evicted = append(w.Evicted, victim.Name)
			w.Done = append(w.Done, done)
			if !w.Slow {
				done(nil)
			}
		},
		Denominate: func(p *v1.Pod) { w.Denominated = append(w.Denominated, p.Name) },
		Wake:       func(uid types.UID) { w.Woken = append(w.Woken, string(uid)) },
		Ungate:     func(uid types.UID) { w.Ungated = append(w.Ungated, string(uid)) },
	})
	add(err)
	w.Profile = profile
	return w
}

// Filter returns, for each node, why the pod cannot run there; "" when it can.
func (w *World) Filter(pod *v1.Pod) (map[string]string, fwk.CycleState, *framework.FitError) {
	w.t.Helper()
	info, err := framework.NewPodInfo(pod)
	if err != nil {
		w.t.Fatal(err)
	}
	state := framework.NewCycleStateFor(info)
	nodes, _ := w.Snapshot.List()
	narrowed, _, s := w.Profile.PreFilter(w.t.Context(), state, pod, nodes)
	if !s.IsSuccess() {
		w.t.Fatal(s)
	}
	out, fit := map[string]string{}, &framework.FitError{AllNodes: len(nodes), Rejected: map[string]*fwk.Status{}}
	for _, n := range nodes {
		name := n.Node().Name
		if !narrowed.AllNodes() && !narrowed.NodeNames.Has(name) {
			out[name] = "narrowed"
			continue
		}
		s := w.Profile.Filter(w.t.Context(), state, pod, n)
		out[name] = s.Message()
		if !s.IsSuccess() {
			fit.Rejected[name] = s
		}
	}
	return out, state, fit
}

// Score returns the score of each node.
func (w *World) Score(pod *v1.Pod) map[string]int64 {
	w.t.Helper()
	_, state, _ := w.Filter(pod)
	nodes, _ := w.Snapshot.List()
	scores, s := w.Profile.Score(w.t.Context(), state, pod, nodes)
	if !s.IsSuccess() {
		w.t.Fatal(s)
	}
	out := map[string]int64{}
	for i, n := range nodes {
		out[n.Node().Name] = scores[i]
	}
	return out
}

// volumeInformer returns the informer of an object that is about volumes, nil for others.
func volumeInformer(f informers.SharedInformerFactory, o any) toolscache.SharedIndexInformer {
	core, storages := f.Core().V1(), f.Storage().V1()
	switch o.(type) {
	case *v1.PersistentVolume:
		return core.PersistentVolumes().Informer()
	case *v1.PersistentVolumeClaim:
		return core.PersistentVolumeClaims().Informer()
	case *storagev1.StorageClass:
		return storages.StorageClasses().Informer()
	case *storagev1.CSINode:
		return storages.CSINodes().Informer()
	case *storagev1.CSIDriver:
		return storages.CSIDrivers().Informer()
	case *storagev1.CSIStorageCapacity:
		return storages.CSIStorageCapacities().Informer()
	case *storagev1.VolumeAttachment:
		return storages.VolumeAttachments().Informer()
	}
	return nil
}
