package main

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	clustertest "github.com/barque/barque/cluster-test"
)

// informersOf are those of one server, as any controller has them.
type informersOf struct {
	server     string
	factory    informers.SharedInformerFactory
	pods, maps cache.SharedIndexInformer
}

type informerSet struct {
	run    *run
	cancel context.CancelFunc
	all    []informersOf
}

// startInformers has one of each kind follow each server.
func (r *run) startInformers(ctx context.Context) *informerSet {
	set := &informerSet{run: r}
	ctx, set.cancel = context.WithCancel(ctx)
	for _, s := range r.servers {
		f := informers.NewSharedInformerFactoryWithOptions(s.Client, 0, informers.WithNamespace(namespace))
		of := informersOf{s.Name, f, f.Core().V1().Pods().Informer(), f.Core().V1().ConfigMaps().Informer()}
		// It cannot fail: the informer was not started.
		_, _ = of.pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(o any) { r.pods.own(o.(*corev1.Pod)) },
			// another pod of its name, when one watch missed the other's end
			UpdateFunc: func(_, o any) { r.pods.own(o.(*corev1.Pod)) },
		})
		f.Start(ctx.Done())
		set.all = append(set.all, of)
	}
	return set
}

func (s *informerSet) stop() {
	s.cancel()
	for _, of := range s.all {
		of.factory.Shutdown()
	}
}

// converged is nil when every informer has the store's objects.
func (s *informerSet) converged(ctx context.Context) error {
	pods, err := s.run.Cluster.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	maps, err := s.run.Cluster.Client.CoreV1().ConfigMaps(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	truth := [2]map[string]string{{}, {}}
	for i := range pods.Items {
		truth[0][pods.Items[i].Name] = pods.Items[i].ResourceVersion
	}
	for i := range maps.Items {
		truth[1][maps.Items[i].Name] = maps.Items[i].ResourceVersion
	}
	for _, of := range s.all {
		for i, informer := range []cache.SharedIndexInformer{of.pods, of.maps} {
			kind := [...]string{"pods", "ConfigMaps"}[i]
			objects := informer.GetStore().List()
			if len(objects) != len(truth[i]) {
				return fmt.Errorf("the informer of %s on %s has %d, and there are %d", kind, of.server, len(objects),
					len(truth[i]))
			}
			for _, o := range objects {
				m, err := meta.Accessor(o)
				if err != nil {
					return err
				}
				if want := truth[i][m.GetName()]; want != m.GetResourceVersion() {
					return fmt.Errorf("the informer of %s on %s has %s at revision %s, the store at %q", kind,
						of.server, m.GetName(), m.GetResourceVersion(), want)
				}
			}
		}
	}
	return nil
}

// wait polls until a check passes; a check that never does is a failure.
func (r *run) wait(what string, check func(context.Context) error) bool {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := clustertest.Poll(ctx, patience, check); err != nil {
		r.Fail("%s: %v", what, err)
		return false
	}
	return true
}
