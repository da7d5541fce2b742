package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/barque/barque/cluster-test/kubeapiserver"
	"github.com/barque/barque/cluster-test/sides"
)

const (
	namespace = "schedbench"
	// workers is how many requests each group of hollow things has under way.
	workers = 16
	// renewal is how often a node renews its Lease, as a kubelet does.
	renewal = 10 * time.Second
)

// bench is a side with hollow nodes: objects with Leases that are renewed, and with pods that start
// as soon as they are bound, finish at once if they are of a Job, and go when they are deleted.
type bench struct {
	*sides.Side
	options
	clients []kubernetes.Interface // one for each server
	pods    cache.SharedIndexInformer
	stop    func() // waits until all that runs for the nodes has ended

	mu      sync.Mutex
	seen    map[types.UID]time.Time // when a pod was first seen bound
	failure atomic.Pointer[error]   // the last one of a hollow node
}

func newBench(ctx context.Context, side *sides.Side, o options) (*bench, error) {
	b := &bench{Side: side, options: o, seen: map[types.UID]time.Time{}}
	for _, e := range side.Servers {
		client, err := kubernetes.NewForConfigAndClient(&rest.Config{
			Host: e.URL, QPS: -1,
			ContentConfig: rest.ContentConfig{ContentType: "application/vnd.kubernetes.protobuf", AcceptContentTypes: "application/vnd.kubernetes.protobuf,application/json"},
		}, e.Client())
		if err != nil {
			return nil, err
		}
		b.clients = append(b.clients, client)
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	if _, err := b.client(0).CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	// Pods are refused until their account is there.
	if err := kubeapiserver.Retry(ctx, nil, func() error {
		_, err := b.client(0).CoreV1().ServiceAccounts(namespace).Get(ctx, "default", metav1.GetOptions{})
		return err
	}); err != nil {
		return nil, err
	}
	if err := b.cordon(ctx); err != nil {
		return nil, err
	}
	progress("making %d nodes", o.nodes)
	if err := b.each(ctx, o.nodes, b.register); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	b.stop = func() { cancel(); running.Wait() }
	running.Go(func() { b.renew(ctx) })
	if err := b.run(ctx, &running); err != nil {
		b.stop()
		return nil, err
	}
	return b, b.untilReady(ctx)
}

// client returns one of the clients; the servers share the work.
func (b *bench) client(i int) kubernetes.Interface { return b.clients[i%len(b.clients)] }

// each calls a function for 0 to n-1, from several goroutines, until one call fails.
func (b *bench) each(ctx context.Context, n int, do func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && ctx.Err() == nil; i = int(next.Add(1)) - 1 {
				if err := do(ctx, i); err != nil {
					cancel(err)
				}
			}
		})
	}
	all.Wait()
	return context.Cause(ctx)
}

// cordon keeps pods from the real nodes of a side.
func (b *bench) cordon(ctx context.Context) error {
	nodes, err := b.client(0).CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, n := range nodes.Items {
		_, err := b.client(0).CoreV1().Nodes().Patch(ctx, n.Name, types.StrategicMergePatchType, []byte(`{"spec":{"unschedulable":true}}`), metav1.PatchOptions{})
		if err != nil {
			return err
		}
	}
	return nil
}

func nodeName(i int) string { return fmt.Sprintf("hollow-%04d", i) }

// register makes a node, as a kubelet does.
func (b *bench) register(ctx context.Context, i int) error {
	name, core := nodeName(i), b.client(i).CoreV1()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
		corev1.LabelHostname: name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64", corev1.LabelTopologyZone: fmt.Sprintf("zone-%d", i%3),
	}}}
	made, err := core.Nodes().Create(ctx, node, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	made.Status.Capacity = corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("32"), corev1.ResourceMemory: resource.MustParse("64Gi"), corev1.ResourcePods: resource.MustParse("110"),
		corev1.ResourceEphemeralStorage: resource.MustParse("100Gi"),
	}
	made.Status.Allocatable = made.Status.Capacity
	made.Status.NodeInfo = corev1.NodeSystemInfo{KubeletVersion: "v1.37.1", OperatingSystem: "linux", Architecture: "amd64"}
	now := metav1.Now()
	for _, kind := range []corev1.NodeConditionType{corev1.NodeReady, corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure} {
		status := corev1.ConditionFalse
		if kind == corev1.NodeReady {
			status = corev1.ConditionTrue
		}
		made.Status.Conditions = append(made.Status.Conditions, corev1.NodeCondition{Type: kind, Status: status, Reason: "Hollow", LastHeartbeatTime: now, LastTransitionTime: now})
	}
	data, err := json.Marshal(map[string]any{"status": made.Status})
	if err != nil {
		return err
	}
	if _, err := core.Nodes().Patch(ctx, name, types.MergePatchType, data, metav1.PatchOptions{}, "status"); err != nil {
		return err
	}
	seconds, renewed := int32(40), metav1.NowMicro()
	_, err = b.client(i).CoordinationV1().Leases(corev1.NamespaceNodeLease).Create(ctx, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &name, LeaseDurationSeconds: &seconds, RenewTime: &renewed},
	}, metav1.CreateOptions{})
	return err
}

// renew renews the Leases, spread over the interval, until the context ends.
func (b *bench) renew(ctx context.Context) {
	for ctx.Err() == nil {
		began := time.Now()
		err := b.each(ctx, b.nodes, func(ctx context.Context, i int) error {
			data := fmt.Appendf(nil, `{"spec":{"renewTime":%q}}`, time.Now().UTC().Format(metav1.RFC3339Micro))
			leases := b.client(i).CoordinationV1().Leases(corev1.NamespaceNodeLease)
			_, err := leases.Patch(ctx, nodeName(i), types.MergePatchType, data, metav1.PatchOptions{})
			if err != nil && ctx.Err() == nil {
				b.failed(err) // a server may be down: the next round is soon
			}
			select {
			case <-ctx.Done():
			case <-time.After(renewal * workers / time.Duration(max(b.nodes, workers)) / 2): // brief: spreads the requests
			}
			return nil
		})
		if err != nil {
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(renewal - time.Since(began)): // brief: the rest of the interval
		}
	}
}

func (b *bench) failed(err error) { b.failure.Store(&err) }

// run does for pods what kubelets do.
func (b *bench) run(ctx context.Context, running *sync.WaitGroup) error {
	factory := informers.NewSharedInformerFactory(b.client(1), 0)
	b.pods = factory.Core().V1().Pods().Informer()
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[string](100*time.Millisecond, 5*time.Second))
	note := func(obj any) {
		pod, ok := obj.(*corev1.Pod)
		if !ok || pod.Spec.NodeName == "" || pod.Namespace != namespace {
			return
		}
		b.mu.Lock()
		if _, known := b.seen[pod.UID]; !known {
			b.seen[pod.UID] = time.Now()
		}
		b.mu.Unlock()
		queue.Add(pod.Namespace + "/" + pod.Name)
	}
	if _, err := b.pods.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: note, UpdateFunc: func(_, now any) { note(now) }}); err != nil {
		return err
	}
	factory.Start(ctx.Done())
	running.Go(func() {
		<-ctx.Done()
		queue.ShutDown()
		factory.Shutdown()
	})
	for i := range workers {
		// It ends when the queue is shut down.
		running.Go(func() {
			for {
				key, shutdown := queue.Get()
				if shutdown {
					return
				}
				if err := b.sync(ctx, i, key); err != nil && ctx.Err() == nil {
					b.failed(err)
					queue.AddRateLimited(key)
				} else {
					queue.Forget(key)
				}
				queue.Done(key)
			}
		})
	}
	if !cache.WaitForCacheSync(ctx.Done(), b.pods.HasSynced) {
		return context.Cause(ctx)
	}
	return nil
}

// sync brings a pod one step on.
func (b *bench) sync(ctx context.Context, i int, key string) error {
	obj, exists, err := b.pods.GetIndexer().GetByKey(key)
	if err != nil || !exists {
		return err
	}
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return errors.New("the informer has what is no pod")
	}
	pods := b.client(i).CoreV1().Pods(pod.Namespace)
	switch {
	case pod.DeletionTimestamp != nil:
		err = pods.Delete(ctx, pod.Name, *metav1.NewDeleteOptions(0))
	case pod.Status.Phase == corev1.PodPending:
		var data []byte
		if data, err = json.Marshal(map[string]any{"status": started(pod)}); err == nil {
			_, err = pods.Patch(ctx, pod.Name, types.StrategicMergePatchType, data, metav1.PatchOptions{}, "status")
		}
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// started is the status of a pod that runs, or has succeeded if it is of a Job.
func started(pod *corev1.Pod) corev1.PodStatus {
	now := metav1.Now()
	ready, phase := corev1.ConditionTrue, corev1.PodRunning
	state := corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}}
	if pod.Spec.RestartPolicy == corev1.RestartPolicyNever {
		ready, phase = corev1.ConditionFalse, corev1.PodSucceeded
		state = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed", StartedAt: now, FinishedAt: now}}
	}
	status := corev1.PodStatus{Phase: phase, PodIP: "10.200.0.1", PodIPs: []corev1.PodIP{{IP: "10.200.0.1"}}, StartTime: &now}
	for _, kind := range []corev1.PodConditionType{corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady} {
		status.Conditions = append(status.Conditions, corev1.PodCondition{Type: kind, Status: ready, LastTransitionTime: now})
	}
	for _, c := range pod.Spec.Containers {
		status.ContainerStatuses = append(status.ContainerStatuses, corev1.ContainerStatus{Name: c.Name, Image: c.Image, ImageID: c.Image, Ready: ready == corev1.ConditionTrue, State: state})
	}
	return status
}

// untilReady waits until no hollow node has a taint.
func (b *bench) untilReady(ctx context.Context) error {
	progress("waiting until the nodes take pods")
	return b.until(ctx, func() error {
		nodes, err := b.client(0).CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			return err
		}
		tainted := 0
		for _, n := range nodes.Items {
			if len(n.Spec.Taints) > 0 && !n.Spec.Unschedulable {
				tainted++
			}
		}
		if tainted > 0 {
			return fmt.Errorf("%d nodes have taints", tainted)
		}
		return nil
	})
}

// until repeats a check until it succeeds, for five minutes. What went wrong at hollow nodes
// meanwhile is told with its error.
func (b *bench) until(ctx context.Context, check func() error) error {
	err := kubeapiserver.Retry(ctx, nil, check)
	if last := b.failure.Load(); err != nil && last != nil {
		err = fmt.Errorf("%w; the last failure of a hollow node: %w", err, *last)
	}
	return err
}
