package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
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

// bench is a side with hollow nodes: objects with Leases that are renewed. Each node watches its
// own pods, as a kubelet does. They start as soon as they are bound, finish at once if they are of
// a Job, and go when they are deleted.
type bench struct {
	*sides.Side
	options
	scheduler string                 // the name of the one that is measured
	clients   []kubernetes.Interface // one for each server
	podsOf    []cache.Store          // the pods of each node
	objects   cache.Store            // the nodes
	queue     workqueue.TypedRateLimitingInterface[podKey]
	ctx       context.Context // of the nodes' goroutines
	running   sync.WaitGroup
	stop      func() // waits until all that runs for the nodes has ended

	mu       sync.Mutex
	seen     map[string]time.Time  // when a node first saw a pod of its own, by the pod's name
	failure  atomic.Pointer[error] // the last one of a hollow node
	repeated atomic.Int64          // requests
	told     atomic.Int64          // statuses of nodes that were not Ready
}

// podKey is a pod, and the node that it is bound to.
type podKey struct {
	node int
	key  string // in the node's store
}

func newBench(ctx context.Context, side *sides.Side, o options, scheduler string) (b *bench, err error) {
	b = &bench{
		Side: side, options: o, scheduler: scheduler, seen: map[string]time.Time{},
		podsOf: make([]cache.Store, o.nodes),
		queue: workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[podKey](100*time.Millisecond, 5*time.Second)),
	}
	for _, e := range side.Servers {
		client, err := newClient(e)
		if err != nil {
			return nil, err
		}
		b.clients = append(b.clients, client)
	}
	running, cancel := context.WithCancel(ctx)
	b.ctx = running
	b.stop = func() { cancel(); b.queue.ShutDown(); b.running.Wait() }
	defer func() {
		if err != nil {
			b.stop()
		}
	}()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	if err := b.send(ctx, func() error {
		_, err := b.client(0).CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{})
		return err
	}); err != nil {
		return nil, err
	}
	// Pods are refused until their account is there.
	if err := b.until(ctx, func() error {
		_, err := b.client(0).CoreV1().ServiceAccounts(namespace).Get(ctx, "default", metav1.GetOptions{})
		return err
	}); err != nil {
		return nil, err
	}
	if err := b.cordon(ctx); err != nil {
		return nil, err
	}
	if b.objects, err = b.watch(ctx, func(f informers.SharedInformerFactory) cache.SharedIndexInformer {
		return f.Core().V1().Nodes().Informer()
	}); err != nil {
		return nil, err
	}
	for range workers {
		b.running.Go(b.work)
	}
	progress("making %d nodes", o.nodes)
	// To make many may take longer than a node may show no life.
	b.running.Go(func() { b.renew(b.ctx) })
	if err := b.each(ctx, o.nodes, b.register); err != nil {
		return nil, err
	}
	err = b.untilReady(ctx)
	b.told.Store(0)
	return b, err
}

func newClient(e sides.Endpoint) (kubernetes.Interface, error) {
	return kubernetes.NewForConfigAndClient(&rest.Config{
		Host: e.URL, QPS: -1,
		ContentConfig: rest.ContentConfig{ContentType: "application/vnd.kubernetes.protobuf",
			AcceptContentTypes: "application/vnd.kubernetes.protobuf,application/json"},
	}, e.Client())
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

// send repeats a request as long as its outcome is unknown, or the answer says that nothing was
// done. So an object that exists at a second try is the one that was to be made.
func (b *bench) send(ctx context.Context, request func() error) error {
	var final error
	tried := false
	err := b.untilSlow(ctx, func() error {
		err := request()
		if err == nil || tried && apierrors.IsAlreadyExists(err) {
			return nil
		}
		if isFinal(err) {
			final = err
			return nil
		}
		tried = true
		b.repeated.Add(1)
		b.failed(err)
		return err
	})
	return errors.Join(err, final)
}

// isFinal reports whether a server has refused a request for its content: a repetition would be
// refused, too.
func isFinal(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	code := status.Status().Code
	return code >= 400 && code < 500 && code != http.StatusTooManyRequests && code != http.StatusRequestTimeout
}

// cordon keeps pods from the real nodes of a side.
func (b *bench) cordon(ctx context.Context) error {
	nodes, err := b.client(0).CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, n := range nodes.Items {
		err := b.send(ctx, func() error {
			_, err := b.client(0).CoreV1().Nodes().Patch(ctx, n.Name, types.StrategicMergePatchType,
				[]byte(`{"spec":{"unschedulable":true}}`), metav1.PatchOptions{})
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func nodeName(i int) string { return fmt.Sprintf("hollow-%04d", i) }

// podsPerNode is how many pods a node takes, as a kubelet has it by default.
const podsPerNode = 110

// register makes a node, as a kubelet does, and begins to watch its pods.
func (b *bench) register(ctx context.Context, i int) error {
	name, core := nodeName(i), b.client(i).CoreV1()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
		corev1.LabelHostname: name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64",
		corev1.LabelTopologyZone: fmt.Sprintf("zone-%d", i%3),
	}}}
	seconds, renewed := int32(40), metav1.NowMicro()
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &name, LeaseDurationSeconds: &seconds,
			RenewTime: &renewed},
	}
	for _, request := range []func() error{
		func() error { _, err := core.Nodes().Create(ctx, node, metav1.CreateOptions{}); return err },
		func() error { return tellStatus(ctx, b.client(i), name) },
		func() error {
			_, err := b.client(i).CoordinationV1().Leases(corev1.NamespaceNodeLease).Create(ctx, lease,
				metav1.CreateOptions{})
			return err
		},
	} {
		if err := b.send(ctx, request); err != nil {
			return fmt.Errorf("node %s: %w", name, err)
		}
	}
	return b.watchPods(ctx, i)
}

// readyStatus is the status of a node that takes pods.
func readyStatus() corev1.NodeStatus {
	s := corev1.NodeStatus{
		Capacity: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("32"), corev1.ResourceMemory: resource.MustParse("64Gi"),
			corev1.ResourcePods:             *resource.NewQuantity(podsPerNode, resource.DecimalSI),
			corev1.ResourceEphemeralStorage: resource.MustParse("100Gi"),
		},
		NodeInfo: corev1.NodeSystemInfo{KubeletVersion: "v1.37.1", OperatingSystem: "linux", Architecture: "amd64"},
	}
	s.Allocatable = s.Capacity
	now := metav1.Now()
	for _, kind := range []corev1.NodeConditionType{corev1.NodeReady, corev1.NodeMemoryPressure,
		corev1.NodeDiskPressure, corev1.NodePIDPressure} {
		status := corev1.ConditionFalse
		if kind == corev1.NodeReady {
			status = corev1.ConditionTrue
		}
		s.Conditions = append(s.Conditions,
			corev1.NodeCondition{Type: kind, Status: status, Reason: "Hollow", LastHeartbeatTime: now,
				LastTransitionTime: now})
	}
	return s
}

// renew renews the Leases, spread over the interval, until the context ends.
func (b *bench) renew(ctx context.Context) {
	for ctx.Err() == nil {
		began := time.Now()
		err := b.each(ctx, b.nodes, func(ctx context.Context, i int) error {
			b.renewOne(ctx, i)
			select {
			case <-ctx.Done():
			case <-time.After(
				renewal * workers / time.Duration(max(b.nodes, workers)) / 2): // brief: spreads the requests
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

// renewOne renews a Lease, through another server if one is down. As a kubelet does, a node reports
// its status again when it was called Unknown.
func (b *bench) renewOne(ctx context.Context, i int) {
	name := nodeName(i)
	obj, exists, err := b.objects.GetByKey(name)
	if err != nil || !exists {
		return // it is not registered yet
	}
	data := fmt.Appendf(nil, `{"spec":{"renewTime":%q}}`, time.Now().UTC().Format(metav1.RFC3339Micro))
	for other := range b.clients {
		client := b.client(i + other)
		_, err := client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Patch(ctx, name, types.MergePatchType, data,
			metav1.PatchOptions{})
		if err == nil && !isReady(obj) {
			b.told.Add(1)
			err = tellStatus(ctx, client, name)
		}
		if err == nil || apierrors.IsNotFound(err) || ctx.Err() != nil {
			return // an object that is not found is not registered yet
		}
		b.failed(err)
	}
}

// isReady reports whether an object is a node that is Ready.
func isReady(obj any) bool {
	node, ok := obj.(*corev1.Node)
	return ok && slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// tellStatus writes the status of a node that takes pods.
func tellStatus(ctx context.Context, client kubernetes.Interface, name string) error {
	status, err := json.Marshal(map[string]any{"status": readyStatus()})
	if err != nil {
		return err
	}
	_, err = client.CoreV1().Nodes().Patch(ctx, name, types.StrategicMergePatchType, status, metav1.PatchOptions{},
		"status")
	return err
}

func (b *bench) failed(err error) { b.failure.Store(&err) }

// watchPods begins to watch the pods of a node, and waits until those there are are known.
func (b *bench) watchPods(ctx context.Context, i int) error {
	note := func(obj any) {
		pod, ok := obj.(*corev1.Pod)
		if !ok || pod.Namespace != namespace {
			return
		}
		b.mu.Lock()
		if _, known := b.seen[pod.Name]; !known {
			b.seen[pod.Name] = time.Now()
		}
		b.mu.Unlock()
		b.queue.Add(podKey{i, pod.Namespace + "/" + pod.Name})
	}
	own := fields.OneTermEqualSelector("spec.nodeName", nodeName(i)).String()
	store, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.NewFilteredListWatchFromClient(b.client(i).CoreV1().RESTClient(), "pods",
			metav1.NamespaceAll, func(o *metav1.ListOptions) { o.FieldSelector = own }),
		ObjectType: &corev1.Pod{},
		Handler:    cache.ResourceEventHandlerFuncs{AddFunc: note, UpdateFunc: func(_, now any) { note(now) }},
		Transform:  lean,
	})
	b.podsOf[i] = store
	b.running.Go(func() { informer.RunWithContext(b.ctx) })
	return b.until(ctx, func() error {
		if !informer.HasSynced() {
			return fmt.Errorf("the pods of node %s are not known", nodeName(i))
		}
		return nil
	})
}

// lean keeps the fields of a pod that a hollow node needs: this process has the pods of all nodes.
func lean(obj any) (any, error) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return obj, nil
	}
	out := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace, UID: pod.UID,
			ResourceVersion: pod.ResourceVersion, DeletionTimestamp: pod.DeletionTimestamp},
		Spec:   corev1.PodSpec{NodeName: pod.Spec.NodeName, RestartPolicy: pod.Spec.RestartPolicy},
		Status: corev1.PodStatus{Phase: pod.Status.Phase},
	}
	for _, c := range pod.Spec.Containers {
		out.Spec.Containers = append(out.Spec.Containers, corev1.Container{Name: c.Name, Image: c.Image})
	}
	return out, nil
}

// work plays the kubelet for pods, until the queue is shut down.
func (b *bench) work() {
	for {
		key, shutdown := b.queue.Get()
		if shutdown {
			return
		}
		if err := b.sync(b.ctx, key); err != nil && b.ctx.Err() == nil {
			b.failed(err)
			b.queue.AddRateLimited(key)
		} else {
			b.queue.Forget(key)
		}
		b.queue.Done(key)
	}
}

// sync brings a pod one step on. A failed one may have met a server that is down: the next try goes
// to another.
func (b *bench) sync(ctx context.Context, key podKey) error {
	obj, exists, err := b.podsOf[key.node].GetByKey(key.key)
	if err != nil || !exists {
		return err
	}
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return errors.New("the informer has what is no pod")
	}
	pods := b.client(key.node + b.queue.NumRequeues(key)).CoreV1().Pods(pod.Namespace)
	switch {
	case pod.DeletionTimestamp != nil:
		err = pods.Delete(ctx, pod.Name,
			metav1.DeleteOptions{GracePeriodSeconds: new(int64),
				Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
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

// watch starts an informer of a kind, and returns its store when all is known.
func (b *bench) watch(
	ctx context.Context, of func(informers.SharedInformerFactory) cache.SharedIndexInformer,
) (cache.Store, error) {
	factory := informers.NewSharedInformerFactory(b.client(1), 0)
	informer := of(factory)
	factory.Start(b.ctx.Done())
	b.running.Go(func() {
		<-b.ctx.Done()
		factory.Shutdown()
	})
	return informer.GetStore(), b.until(ctx, func() error {
		if !informer.HasSynced() {
			return errors.New("an informer of the benchmark has not synced")
		}
		return nil
	})
}

// started is the status of a pod that runs, or has succeeded if it is of a Job.
func started(pod *corev1.Pod) corev1.PodStatus {
	now := metav1.Now()
	ready, phase := corev1.ConditionTrue, corev1.PodRunning
	state := corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}}
	if pod.Spec.RestartPolicy == corev1.RestartPolicyNever {
		ready, phase = corev1.ConditionFalse, corev1.PodSucceeded
		state = corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{Reason: "Completed", StartedAt: now, FinishedAt: now}}
	}
	status := corev1.PodStatus{Phase: phase, PodIP: "10.200.0.1", PodIPs: []corev1.PodIP{{IP: "10.200.0.1"}},
		StartTime: &now}
	for _, kind := range []corev1.PodConditionType{corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady} {
		status.Conditions = append(status.Conditions,
			corev1.PodCondition{Type: kind, Status: ready, LastTransitionTime: now})
	}
	for _, c := range pod.Spec.Containers {
		status.ContainerStatuses = append(status.ContainerStatuses,
			corev1.ContainerStatus{Name: c.Name, Image: c.Image, ImageID: c.Image, Ready: ready == corev1.ConditionTrue,
				State: state})
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

// until repeats a check until it succeeds, for five minutes. Its error has the faults at hollow
// nodes meanwhile.
func (b *bench) until(ctx context.Context, check func() error) error {
	err := kubeapiserver.Retry(ctx, nil, check)
	if last := b.failure.Load(); err != nil && last != nil {
		err = fmt.Errorf("%w; the last failure of a hollow node: %w", err, *last)
	}
	return err
}

// coarse is the interval of checks in untilSlow.
const coarse = 200 * time.Millisecond

// untilSlow is until for conditions that take many seconds.
func (b *bench) untilSlow(ctx context.Context, check func() error) error {
	return b.until(ctx, func() error {
		err := check()
		if err != nil {
			pause(ctx)
		}
		return err
	})
}

// untilNone waits until none is left of something, as long as their number changes in each five
// minutes.
func (b *bench) untilNone(ctx context.Context, what string, count func() int) error {
	left := count()
	for left > 0 {
		before := left
		if err := b.untilSlow(ctx, func() error {
			if left = count(); left == before {
				return fmt.Errorf("%d %s", left, what)
			}
			return nil
		}); err != nil {
			return err
		}
		pause(ctx)
	}
	return nil
}

func pause(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(coarse): // brief: the interval of a poll
	}
}
