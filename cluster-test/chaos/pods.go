package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"

	clustertest "github.com/barque/barque/cluster-test"
	"github.com/barque/barque/cluster-test/chaos/traces"
	"github.com/barque/barque/cluster-test/netspace"
	"github.com/barque/barque/cluster-test/schedule"
)

const (
	web      = "web" // the Deployment and its Service
	replicas = 4
	fixed    = 3 // pods of fixed names
	image    = "barque.local/hello:1"
)

// pods are those that run all the time: a Deployment that is called through its Service, and pods
// of fixed names.
type pods struct {
	run     *run
	service string // address and port
	cancel  context.CancelFunc
	running sync.WaitGroup
	halted  sync.Once

	mu    sync.Mutex
	owner map[string]string // name of a pod, by its UID
	calls int
	bad   int
}

func fixedName(i int) string { return fmt.Sprintf("fixed-%d", i) }

func template(labels map[string]string) corev1.PodTemplateSpec {
	grace := int64(2)
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: labels},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: &grace,
			Containers: []corev1.Container{{
				Name: "hello", Image: image,
				ReadinessProbe: &corev1.Probe{PeriodSeconds: 1,
					ProbeHandler: corev1.ProbeHandler{
						HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromInt32(8080)}}},
			}},
		},
	}
}

// startPods makes the workloads and waits until they are ready.
func (r *run) startPods(ctx context.Context) (*pods, error) {
	p := &pods{run: r, owner: make(map[string]string)}
	labels := map[string]string{"app": web}
	n := int32(replicas)
	client := r.Cluster.Client
	// The admission of pods needs it.
	err := clustertest.Poll(ctx, time.Minute, func(ctx context.Context) error {
		_, err := client.CoreV1().ServiceAccounts(namespace).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
	if err != nil {
		return nil, err
	}
	_, err = client.AppsV1().Deployments(namespace).Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: web},
		Spec: appsv1.DeploymentSpec{Replicas: &n, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: template(labels)},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	service, err := client.CoreV1().Services(namespace).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: web},
		Spec: corev1.ServiceSpec{Selector: labels,
			Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080)}}},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	p.service = net.JoinHostPort(service.Spec.ClusterIP, "80")
	var working context.Context
	working, p.cancel = context.WithCancel(context.WithoutCancel(ctx))
	for i := range fixed {
		p.running.Go(func() { p.keep(working, fixedName(i)) })
	}
	r.pods = p
	if err := clustertest.Poll(ctx, patience, p.whole); err != nil {
		p.stop()
		return nil, err
	}
	there, err := r.traces.Remains()
	if kinds := there.Blind(); err == nil && len(kinds) > 0 {
		err = fmt.Errorf("pods run, and nothing is seen of their %s: what is left of them would not be found",
			strings.Join(kinds, " and "))
	}
	if err != nil {
		p.stop()
		return nil, err
	}
	p.running.Go(func() { p.call(working) })
	p.running.Go(func() { p.watchTwins(working) })
	return p, nil
}

func (p *pods) stop() {
	p.halted.Do(func() {
		p.cancel()
		p.running.Wait()
	})
}

// keep makes a pod again whenever there is none of its name, as a StatefulSet does.
func (p *pods) keep(ctx context.Context, name string) {
	clients := []kubernetes.Interface{}
	for _, s := range p.run.servers {
		clients = append(clients, s.Client)
	}
	for turn := 0; ctx.Err() == nil; {
		limited, cancel := clustertest.TryOnce(ctx)
		client := clients[turn%len(clients)].CoreV1().Pods(namespace)
		_, err := client.Get(limited, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			made := template(map[string]string{"app": "fixed"})
			_, err = client.Create(limited,
				&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: made.Labels}, Spec: made.Spec},
				metav1.CreateOptions{})
		}
		cancel()
		if err != nil && !apierrors.IsAlreadyExists(err) {
			turn++
		}
		schedule.Pause(ctx, 500*time.Millisecond)
	}
}

// whole is nil when all pods that should be there are ready, and those run, and no others, on the
// nodes where they should.
func (p *pods) whole(ctx context.Context) error {
	d, err := p.run.Cluster.Client.AppsV1().Deployments(namespace).Get(ctx, web, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if s := d.Status; s.ObservedGeneration < d.Generation || s.ReadyReplicas != replicas || s.Replicas != replicas ||
		s.UpdatedReplicas != replicas {
		return fmt.Errorf("of %d replicas of %s %d are there and %d ready", replicas, web, s.Replicas, s.ReadyReplicas)
	}
	list, err := p.run.Cluster.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	var declared []traces.Pod
	for i := range list.Items {
		pod := &list.Items[i]
		if pod.DeletionTimestamp != nil {
			return fmt.Errorf("pod %s is still there", pod.Name)
		}
		if !clustertest.Ready(pod) {
			return fmt.Errorf("pod %s on %s is not ready", pod.Name, pod.Spec.NodeName)
		}
		declared = append(declared, traces.Pod{UID: string(pod.UID), Node: pod.Spec.NodeName})
	}
	if len(declared) != replicas+fixed {
		return fmt.Errorf("%d pods are ready, want %d", len(declared), replicas+fixed)
	}
	running, err := p.run.traces.RunningPods()
	if err != nil {
		return err
	}
	return asDeclared(running, declared)
}

// asDeclared is nil when just those pods run that should.
func asDeclared(running, declared []traces.Pod) error {
	var wrong []error
	for _, pod := range running {
		if !slices.Contains(declared, pod) {
			wrong = append(wrong, fmt.Errorf("pod %s runs on %s, and should not", pod.UID, pod.Node))
		}
	}
	for _, pod := range declared {
		if !slices.Contains(running, pod) {
			wrong = append(wrong, fmt.Errorf("pod %s does not run on %s, and is called ready there", pod.UID, pod.Node))
		}
	}
	return errors.Join(wrong...)
}

// caller is the node from which the Service is called all the time, and callTimeout how long a
// caller waits.
const (
	caller      = "a1"
	callTimeout = time.Second
)

// httpFrom returns a client in a node's network namespace. Each call has a connection of its own.
func (r *run) httpFrom(node string) *http.Client {
	// brief: the Service is called again and again
	return &http.Client{Timeout: callTimeout, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			// Of a call that was given up net/http would go on dialling, for minutes.
			ctx, cancel := context.WithTimeout(ctx, callTimeout) // brief: as the whole call
			defer cancel()
			return netspace.Dial(ctx, r.Cluster.Netns(node), network, address)
		}}}
}

func get(ctx context.Context, client *http.Client, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, response.Body)
	if response.StatusCode != http.StatusOK {
		err = errors.Join(err, fmt.Errorf("it answers %s", response.Status))
	}
	return errors.Join(err, response.Body.Close())
}

// call calls the Service all the time.
func (p *pods) call(ctx context.Context) {
	client, note := p.run.httpFrom(caller), p.run.observer(true)
	for ctx.Err() == nil {
		begin := time.Now()
		err := get(ctx, client, "http://"+p.service+"/")
		if ctx.Err() != nil {
			return
		}
		note("service", begin, time.Now(), err == nil)
		p.mu.Lock()
		p.calls++
		if err != nil {
			p.bad++
		}
		p.mu.Unlock()
		schedule.Pause(ctx, 100*time.Millisecond)
	}
}

// answers is nil when the Service answers on every node.
func (p *pods) answers(ctx context.Context) error {
	for _, n := range p.run.Cluster.Nodes() {
		if err := get(ctx, p.run.httpFrom(n), "http://"+p.service+"/"); err != nil {
			return fmt.Errorf("the Service on %s: %w", n, err)
		}
	}
	return nil
}

// own notes the owner of a pod.
func (p *pods) own(pod *corev1.Pod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.owner[string(pod.UID)] = pod.Name
}

// watchTwins looks all the time for two pods of one fixed name that run.
func (p *pods) watchTwins(ctx context.Context) {
	for told := map[string]bool{}; ctx.Err() == nil; schedule.Pause(ctx, 250*time.Millisecond) {
		running, err := p.run.traces.RunningPods()
		if err != nil {
			p.run.Fail("look for running pods: %v", err)
			return
		}
		p.mu.Lock()
		first := make(map[string]traces.Pod)
		var twins []string
		for _, r := range running {
			name := p.owner[r.UID]
			if other, ok := first[name]; ok && name != "" && !told[name] {
				told[name] = true
				twins = append(twins, fmt.Sprintf("two pods %s run at once: %+v and %+v", name, other, r))
			}
			first[name] = r
		}
		p.mu.Unlock()
		for _, t := range twins {
			p.run.Fail("%s", t)
		}
	}
}
