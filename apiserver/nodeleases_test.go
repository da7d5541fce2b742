package apiserver

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/apiserver/nodeleases"
)

// signs are a test's times of nodes' last signs of life.
type signs struct {
	mu   sync.Mutex
	seen map[string]time.Time
}

func (s *signs) LastSeen(node string) (time.Time, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, ok := s.seen[node]
	return at, ok
}

func (s *signs) set(node string, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen[node] = at
}

// nodeLeases is a cluster with n nodes. Gossip has signs of life of all but the last.
type nodeLeases struct {
	*cluster
	t      *testing.T
	signs  *signs
	leases func(namespace string) leaseClient
}

type leaseClient interface {
	Create(context.Context, *coordinationv1.Lease, metav1.CreateOptions) (*coordinationv1.Lease, error)
	Update(context.Context, *coordinationv1.Lease, metav1.UpdateOptions) (*coordinationv1.Lease, error)
	Patch(
		context.Context, string, types.PatchType, []byte, metav1.PatchOptions, ...string,
	) (*coordinationv1.Lease, error)
	Delete(context.Context, string, metav1.DeleteOptions) error
	DeleteCollection(context.Context, metav1.DeleteOptions, metav1.ListOptions) error
	Get(context.Context, string, metav1.GetOptions) (*coordinationv1.Lease, error)
	List(context.Context, metav1.ListOptions) (*coordinationv1.LeaseList, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

var heardAt = time.Date(2026, 1, 2, 3, 4, 27, 0, time.UTC)

func startNodeLeases(t *testing.T, nodes int) *nodeLeases {
	s := &signs{seen: map[string]time.Time{}}
	c := &nodeLeases{t: t, signs: s, cluster: startCluster(t, func(cfg *Config) { cfg.SignsOfLife = s })}
	c.leases = func(namespace string) leaseClient { return c.admin.CoordinationV1().Leases(namespace) }
	must(0, c.ensure(t.Context(), c.client))(t)
	for i := range nodes {
		name := fmt.Sprint("n", i)
		c.addNode(name)
		if i < nodes-1 {
			s.set(name, heardAt)
		}
	}
	return c
}

func (c *nodeLeases) addNode(name string) *corev1.Node {
	c.t.Helper()
	return must(c.admin.CoreV1().Nodes().Create(c.t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name, Labels: map[string]string{nodeleases.MemberLabel: ""}}}, metav1.CreateOptions{}))(c.t)
}

func (c *nodeLeases) list(namespace string, o metav1.ListOptions) *coordinationv1.LeaseList {
	c.t.Helper()
	return must(c.leases(namespace).List(c.t.Context(), o))(c.t)
}

func names(list *coordinationv1.LeaseList) (out []string) {
	for _, l := range list.Items {
		out = append(out, l.Name)
	}
	return out
}

func TestNodeLease(t *testing.T) {
	c := startNodeLeases(t, 2)
	ctx := t.Context()
	l := must(c.leases(corev1.NamespaceNodeLease).Get(ctx, "n0", metav1.GetOptions{}))(t)
	node := must(c.admin.CoreV1().Nodes().Get(ctx, "n0", metav1.GetOptions{}))(t)
	if ptr.Deref(l.Spec.HolderIdentity, "") != "n0" || ptr.Deref(l.Spec.LeaseDurationSeconds, 0) != 40 ||
		l.Spec.RenewTime == nil ||
		!l.Spec.RenewTime.Equal(&metav1.MicroTime{Time: heardAt.Truncate(10 * time.Second)}) {
		t.Errorf("the lease is %+v", l.Spec)
	}
	if l.Namespace != corev1.NamespaceNodeLease || l.UID == "" || l.UID == node.UID || l.ResourceVersion == "" ||
		!l.CreationTimestamp.Equal(&node.CreationTimestamp) {
		t.Errorf("its metadata is %+v", l.ObjectMeta)
	}
	var again *coordinationv1.Lease
	c.atRest(t, func() {
		l = must(c.leases(corev1.NamespaceNodeLease).Get(ctx, "n0", metav1.GetOptions{}))(t)
		again = must(c.leases(corev1.NamespaceNodeLease).Get(ctx, "n0", metav1.GetOptions{}))(t)
	})
	if again.UID != l.UID || again.ResourceVersion != l.ResourceVersion {
		t.Errorf("first %s at %s, then %s at %s", l.UID, l.ResourceVersion, again.UID, again.ResourceVersion)
	}
	if silent := must(c.leases(corev1.NamespaceNodeLease).Get(ctx, "n1", metav1.GetOptions{}))(
		t); silent.Spec.RenewTime != nil || silent.UID == l.UID {
		t.Errorf("of a node that was never heard of: %+v", silent)
	}
	if _, err := c.leases(corev1.NamespaceNodeLease).Get(ctx, "n2", metav1.GetOptions{}); !apierrors.IsNotFound(err) ||
		!strings.Contains(err.Error(), `leases.coordination.k8s.io "n2" not found`) {
		t.Errorf("of no node: %v", err)
	}
	if list := c.list(corev1.NamespaceNodeLease,
		metav1.ListOptions{}); !slices.Equal(names(list), []string{"n0", "n1"}) || list.ResourceVersion == "" {
		t.Errorf("listed: %v at %s", names(list), list.ResourceVersion)
	}

	// The kubelet's own report counts, too, if it is newer, and not in the future.
	for said, want := range map[time.Time]time.Time{
		heardAt.Add(time.Minute):           heardAt.Add(time.Minute).Truncate(10 * time.Second),
		heardAt.Add(-time.Minute):          heardAt.Truncate(10 * time.Second),
		time.Now().Add(time.Hour).Round(0): heardAt.Truncate(10 * time.Second),
	} {
		node := must(c.admin.CoreV1().Nodes().Get(ctx, "n0", metav1.GetOptions{}))(t)
		node.Status.Conditions = []corev1.NodeCondition{
			{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.NewTime(said)}}
		must(c.admin.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{}))(t)
		if l := must(c.leases(corev1.NamespaceNodeLease).Get(ctx, "n0", metav1.GetOptions{}))(
			t); !l.Spec.RenewTime.Time.Equal(want) {
			t.Errorf("the kubelet wrote at %s: renewed %s, want %s", said, l.Spec.RenewTime, want)
		}
	}
	must(0, c.admin.CoreV1().Nodes().Delete(ctx, "n0", metav1.DeleteOptions{}))(t)
	if _, err := c.leases(corev1.NamespaceNodeLease).Get(ctx, "n0", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the node is gone, and its lease: %v", err)
	}
}

// Writes of members' leases are refused with the reason, in every form; writes in other
// namespaces succeed.
func TestNodeLeasesCannotBeWritten(t *testing.T) {
	c := startNodeLeases(t, 2)
	ctx, ours := t.Context(), c.leases(corev1.NamespaceNodeLease)
	lease := must(ours.Get(ctx, "n0", metav1.GetOptions{}))(t)
	for what, write := range map[string]func() error{
		"create": func() error {
			_, err := ours.Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "n0"}},
				metav1.CreateOptions{})
			return err
		},
		"update": func() error { _, err := ours.Update(ctx, lease, metav1.UpdateOptions{}); return err },
		"patch": func() error {
			_, err := ours.Patch(ctx, "n0", types.MergePatchType, []byte(`{"spec":{"leaseDurationSeconds":5}}`),
				metav1.PatchOptions{})
			return err
		},
		"apply": func() error {
			_, err := ours.Patch(ctx, "n0", types.ApplyPatchType,
				[]byte(`{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"n0"}}`),
				metav1.PatchOptions{FieldManager: "m"})
			return err
		},
		"delete":     func() error { return ours.Delete(ctx, "n0", metav1.DeleteOptions{}) },
		"delete all": func() error { return ours.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}) },
		"the namespace": func() error {
			return c.admin.CoreV1().Namespaces().Delete(ctx, corev1.NamespaceNodeLease, metav1.DeleteOptions{})
		},
	} {
		err := write()
		if !apierrors.IsForbidden(err) ||
			(what != "the namespace" && !strings.Contains(err.Error(), "show when these were last heard of")) {
			t.Errorf("%s: %v", what, err)
		}
	}
	other := c.leases("default")
	made := must(
		other.Create(ctx,
			&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "elect"},
				Spec: coordinationv1.LeaseSpec{HolderIdentity: ptr.To("me")}}, metav1.CreateOptions{}))(t)
	made.Spec.HolderIdentity = ptr.To("you")
	if l := must(other.Update(ctx, made, metav1.UpdateOptions{}))(t); *l.Spec.HolderIdentity != "you" {
		t.Errorf("an ordinary lease: %+v", l.Spec)
	}
	must(0, other.Delete(ctx, "elect", metav1.DeleteOptions{}))(t)
}

// Over all namespaces both kinds are listed, with pages of any size, and selected by the
// same rules.
func TestLeasesOfAllNamespaces(t *testing.T) {
	c := startNodeLeases(t, 5)
	want := []string{"e0", "e1", "e2", "n0", "n1", "n2", "n3", "n4"}
	for i := range 3 {
		must(
			c.leases("default").Create(t.Context(),
				&coordinationv1.Lease{
					ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("e", i), Labels: map[string]string{"a": "b"}}},
				metav1.CreateOptions{}))(t)
	}
	for limit := range int64(10) {
		var got []string
		revisions := map[string]bool{}
		o := metav1.ListOptions{Limit: limit}
		for {
			page := c.list("", o)
			if limit > 0 && int64(len(page.Items)) > limit {
				t.Errorf("a page of %d has %d", limit, len(page.Items))
			}
			revisions[page.ResourceVersion] = true
			got = append(got, names(page)...)
			if o.Continue = page.Continue; o.Continue == "" {
				break
			}
		}
		if !slices.Equal(got, want) || len(revisions) != 1 {
			t.Errorf("in pages of %d: %v, of the revisions %v", limit, got, revisions)
		}
	}
	for selector, want := range map[metav1.ListOptions][]string{
		{LabelSelector: "a=b"}:                                    {"e0", "e1", "e2"},
		{LabelSelector: "!a"}:                                     {"n0", "n1", "n2", "n3", "n4"},
		{FieldSelector: "metadata.name=n3"}:                       {"n3"},
		{FieldSelector: "metadata.name=e1"}:                       {"e1"},
		{FieldSelector: "metadata.namespace=default"}:             {"e0", "e1", "e2"},
		{FieldSelector: "metadata.namespace=kube-node-lease"}:     {"n0", "n1", "n2", "n3", "n4"},
		{FieldSelector: "metadata.name!=n3", LabelSelector: "!a"}: {"n0", "n1", "n2", "n4"},
	} {
		if got := names(c.list("", selector)); !slices.Equal(got, want) {
			t.Errorf("%+v: %v, want %v", selector, got, want)
		}
	}
	if _, err := c.leases("").List(t.Context(),
		metav1.ListOptions{Continue: "nodes.nonsense"}); !apierrors.IsBadRequest(err) {
		t.Errorf("a continue token that is none: %v", err)
	}
	if _, err := c.leases("").List(t.Context(),
		metav1.ListOptions{Continue: "nodes.1.nonsense"}); !apierrors.IsBadRequest(err) {
		t.Errorf("a continue token with an inner one that is none: %v", err)
	}
}

// follow returns the events of a watch, one by one. A server may end the watch of a slow client;
// one that began at a revision is resumed where it ended.
func (c *nodeLeases) follow(
	namespace string, o metav1.ListOptions,
) (next func() (watch.EventType, *coordinationv1.Lease)) {
	c.t.Helper()
	ctx, stop := context.WithCancel(c.t.Context())
	w := must(c.leases(namespace).Watch(ctx, o))(c.t)
	c.t.Cleanup(func() { stop(); w.Stop() })
	from := o.ResourceVersion
	return func() (watch.EventType, *coordinationv1.Lease) {
		c.t.Helper()
		patience := time.After(time.Minute)
		for {
			select {
			case e, open := <-w.ResultChan():
				if l, ok := e.Object.(*coordinationv1.Lease); ok {
					o.ResourceVersion = l.ResourceVersion
					return e.Type, l
				}
				if open || from == "" || from == "0" {
					c.t.Fatalf("the watch tells %v %+v (open: %v)", e.Type, e.Object, open)
				}
				c.t.Logf("the watch ended, and is taken up at %s", o.ResourceVersion)
				w = must(c.leases(namespace).Watch(ctx, o))(c.t)
			case <-patience:
				c.t.Fatal("the watch tells nothing")
			}
		}
	}
}

func (c *nodeLeases) want(
	next func() (watch.EventType, *coordinationv1.Lease), what watch.EventType, name string,
) *coordinationv1.Lease {
	c.t.Helper()
	for {
		switch got, l := next(); {
		case got == watch.Modified && what != watch.Modified: // a renewal in between
		case got != what || l.Name != name:
			c.t.Fatalf("%s %s, want %s %s", got, l.Name, what, name)
		default:
			return l
		}
	}
}

func TestWatchingNodeLeases(t *testing.T) {
	for _, namespace := range []string{corev1.NamespaceNodeLease, ""} {
		t.Run("namespace "+namespace, func(t *testing.T) {
			t.Parallel() // it waits for a renewal, up to ten seconds
			c := startNodeLeases(t, 2)
			next := c.follow(namespace,
				metav1.ListOptions{ResourceVersion: c.list(namespace, metav1.ListOptions{}).ResourceVersion})
			c.addNode("n2")
			added := c.want(next, watch.Added, "n2")
			if namespace == "" {
				must(
					c.leases("default").Create(t.Context(),
						&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "elect"}}, metav1.CreateOptions{}))(t)
				c.want(next, watch.Added, "elect")
			}
			// A change of the node does not change its lease; a renewal is sent at the next full
			// ten seconds.
			node := must(c.admin.CoreV1().Nodes().Get(t.Context(), "n2", metav1.GetOptions{}))(t)
			node.Labels["a"] = "b"
			must(c.admin.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{}))(t)
			c.signs.set("n2", heardAt)
			var renewed *coordinationv1.Lease
			for renewed == nil || renewed.Name != "n2" {
				var what watch.EventType
				if what, renewed = next(); what != watch.Modified {
					t.Fatalf("%s %s", what, renewed.Name)
				}
			}
			if renewed.UID != added.UID || renewed.Spec.RenewTime == nil {
				t.Errorf("renewed: %+v", renewed)
			}
			must(0, c.admin.CoreV1().Nodes().Delete(t.Context(), "n2", metav1.DeleteOptions{}))(t)
			c.want(next, watch.Deleted, "n2")

			// A watch that is taken up where another one was missed nothing.
			again := c.follow(namespace, metav1.ListOptions{ResourceVersion: added.ResourceVersion})
			for {
				what, l := again()
				if what == watch.Deleted && l.Name == "n2" {
					break
				}
			}
		})
	}
}

// A watch that begins without a revision begins with the existing leases, and goes on.
func TestWatchingLeasesFromAnywhere(t *testing.T) {
	c := startNodeLeases(t, 1)
	for _, namespace := range []string{corev1.NamespaceNodeLease, ""} {
		for i, o := range []metav1.ListOptions{{}, {AllowWatchBookmarks: true},
			{ResourceVersion: "0", AllowWatchBookmarks: true}} {
			next := c.follow(namespace, o)
			if what, l := next(); what != watch.Added {
				t.Errorf("namespace %q, %+v: it begins with %s %s", namespace, o, what, l.Name)
			}
			added := fmt.Sprintf("m%d-%d", len(namespace), i)
			c.addNode(added)
			for what, l := next(); what != watch.Added || l.Name != added; {
				what, l = next()
			}
		}
	}
}

// A client that has seen the revision of a stored lease has seen every earlier event of nodes: a
// watch is resumed there.
func TestWatchingLeasesInOrder(t *testing.T) {
	c := startNodeLeases(t, 1)
	ctx := t.Context()
	next := c.follow("", metav1.ListOptions{ResourceVersion: c.list("", metav1.ListOptions{}).ResourceVersion})
	const rounds = 100
	for i := range rounds {
		c.addNode(fmt.Sprint("m", i))
		must(0, c.admin.CoreV1().Nodes().Delete(ctx, fmt.Sprint("m", i), metav1.DeleteOptions{}))(t)
		must(
			c.leases("default").Create(ctx,
				&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("e", i)}},
				metav1.CreateOptions{}))(t)
	}
	gone := map[string]bool{}
	for seen := 0; seen < rounds; {
		switch what, l := next(); {
		case what == watch.Deleted:
			gone[l.Name] = true
		case l.Namespace == "default":
			if node := strings.Replace(l.Name, "e", "m", 1); !gone[node] {
				t.Fatalf("the lease %s was told at revision %s before the deletion of node %s", l.Name,
					l.ResourceVersion, node)
			}
			seen++
		}
	}
}

// An informer of any client keeps up, by the way that it lists and watches.
func TestInformerOfLeases(t *testing.T) {
	t.Parallel() // it waits for a renewal, up to ten seconds
	c := startNodeLeases(t, 3)
	must(
		c.leases("default").Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "elect"}},
			metav1.CreateOptions{}))(t)
	ctx, stop := context.WithCancel(t.Context())
	factory := informers.NewSharedInformerFactory(kubernetes.Interface(c.admin), 0)
	informer := factory.Coordination().V1().Leases()
	informer.Informer()
	factory.Start(ctx.Done())
	defer func() { stop(); factory.Shutdown() }()
	if !cache.WaitForCacheSync(ctx.Done(), informer.Informer().HasSynced) {
		t.Fatal("the informer does not sync")
	}
	have := func() string {
		keys := informer.Informer().GetStore().ListKeys()
		slices.Sort(keys)
		return strings.Join(keys, " ")
	}
	// It may begin with a list of any moment, and then with one that is a moment old.
	eventually(t, "all that there is", func(context.Context) error {
		if got, want := have(), "default/elect kube-node-lease/n0 kube-node-lease/n1 kube-node-lease/n2"; got != want {
			return fmt.Errorf("the informer has %s, want %s", got, want)
		}
		return nil
	})
	must(0, c.admin.CoreV1().Nodes().Delete(ctx, "n1", metav1.DeleteOptions{}))(t)
	c.addNode("n3")
	c.signs.set("n0", heardAt.Add(time.Hour))
	follows := func(context.Context) error {
		if got, want := have(), "default/elect kube-node-lease/n0 kube-node-lease/n2 kube-node-lease/n3"; got != want {
			return fmt.Errorf("the informer has %s, want %s", got, want)
		}
		l, err := informer.Lister().Leases(corev1.NamespaceNodeLease).Get("n0")
		if err == nil && !l.Spec.RenewTime.Time.Equal(heardAt.Add(time.Hour).Truncate(nodeleases.RenewEvery)) {
			err = fmt.Errorf("renewed %s", l.Spec.RenewTime)
		}
		return err
	}
	var last error
	if wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, time.Minute, true,
		func(ctx context.Context) (bool, error) {
			last = follows(ctx)
			return last == nil, nil
		}) != nil {
		t.Error(last)
	}
}

func TestKubectlDescribesNodeLeases(t *testing.T) {
	c := startNodeLeases(t, 2)
	run := kubectl(t, c.cluster)
	for args, want := range map[string][]string{
		"describe node n0": {"HolderIdentity:  n0",
			"RenewTime:       " + heardAt.Truncate(10*time.Second).Local().Format("Mon, 02 Jan 2006 15:04")},
		"get leases -n kube-node-lease":           {"NAME", "HOLDER", "n0", "n1"},
		"get leases -A":                           {"kube-node-lease", "n0", "n1"},
		"get lease n0 -n kube-node-lease -o yaml": {"leaseDurationSeconds: 40", "holderIdentity: n0"},
	} {
		out, err := run("", strings.Fields(args)...)
		if err != nil {
			t.Errorf("kubectl %s: %v\n%s", args, err, out)
		}
		for _, text := range want {
			if !strings.Contains(out, text) {
				t.Errorf("kubectl %s: %q is missing in\n%s", args, text, out)
			}
		}
	}
}

// startForeignNode registers a node that is no member, and its lease, as an upstream kubelet does.
func (c *nodeLeases) startForeignNode(name string) (*corev1.Node, *coordinationv1.Lease) {
	c.t.Helper()
	ctx := c.t.Context()
	node := must(
		c.admin.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}},
			metav1.CreateOptions{}))(c.t)
	if _, err := c.leases(corev1.NamespaceNodeLease).Get(ctx, name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		c.t.Fatalf("a foreign node has a lease before it made one: %v", err)
	}
	lease := must(c.leases(corev1.NamespaceNodeLease).Create(ctx, foreignLease(node), metav1.CreateOptions{}))(c.t)
	return node, lease
}

func foreignLease(node *corev1.Node) *coordinationv1.Lease {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: node.Name, Namespace: corev1.NamespaceNodeLease,
			OwnerReferences: []metav1.OwnerReference{
				{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID},
			}},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: ptr.To(node.Name), LeaseDurationSeconds: ptr.To[int32](40),
			RenewTime: ptr.To(metav1.NowMicro())},
	}
}

// A foreign node's lease is written as a kubelet writes it: made with an owner, renewed with the
// version that the last write returned, read again after a conflict.
func TestForeignNodeLease(t *testing.T) {
	c := startNodeLeases(t, 1)
	ctx, leases := t.Context(), c.leases(corev1.NamespaceNodeLease)
	node, lease := c.startForeignNode("edge")
	if len(lease.OwnerReferences) != 1 || lease.OwnerReferences[0].UID != node.UID {
		t.Errorf("owners: %+v", lease.OwnerReferences)
	}
	first := lease.DeepCopy()
	for range 3 {
		lease.Spec.RenewTime = ptr.To(metav1.NowMicro())
		renewed := must(leases.Update(ctx, lease, metav1.UpdateOptions{}))(t)
		if renewed.ResourceVersion == lease.ResourceVersion || renewed.UID != lease.UID {
			t.Fatalf("renewed: %+v after %+v", renewed.ObjectMeta, lease.ObjectMeta)
		}
		lease = renewed
	}
	if _, err := leases.Update(ctx, first, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("an update of an old version: %v", err)
	}
	if got := must(leases.Get(ctx, "edge", metav1.GetOptions{}))(t); got.ResourceVersion != lease.ResourceVersion {
		t.Errorf("read %s, written %s", got.ResourceVersion, lease.ResourceVersion)
	}
	patched := must(
		leases.Patch(ctx, "edge", types.MergePatchType, []byte(`{"spec":{"leaseDurationSeconds":50}}`),
			metav1.PatchOptions{}))(t)
	if *patched.Spec.LeaseDurationSeconds != 50 {
		t.Errorf("patched: %+v", patched.Spec)
	}
	if got := names(c.list(corev1.NamespaceNodeLease, metav1.ListOptions{})); !slices.Equal(got,
		[]string{"edge", "n0"}) {
		t.Errorf("listed: %v", got)
	}
	if got := names(c.list("", metav1.ListOptions{LabelSelector: "!" + nodeleases.MemberLabel})); !slices.Equal(got,
		[]string{"edge"}) {
		t.Errorf("of nodes that are no members: %v", got)
	}

	// Many are deleted together if no member's is among them.
	if err := leases.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("deleting all: %v", err)
	}
	must(leases.Get(ctx, "edge", metav1.GetOptions{}))(t)
	must(0,
		leases.DeleteCollection(ctx, metav1.DeleteOptions{},
			metav1.ListOptions{LabelSelector: "!" + nodeleases.MemberLabel}))(t)
	if got := names(c.list(corev1.NamespaceNodeLease, metav1.ListOptions{})); !slices.Equal(got, []string{"n0"}) {
		t.Errorf("after the deletion: %v", got)
	}
	must(leases.Create(ctx, foreignLease(node), metav1.CreateOptions{}))(t)
	must(0, leases.Delete(ctx, "edge", metav1.DeleteOptions{}))(t)
	if _, err := leases.Get(ctx, "edge", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("after the deletion: %v", err)
	}
}

// A lease that was written before a member came is hidden while the member is there, and cannot
// stand for it.
func TestMembersLeaseHidesAStoredOne(t *testing.T) {
	c := startNodeLeases(t, 1)
	ctx, leases := t.Context(), c.leases(corev1.NamespaceNodeLease)
	node, stored := c.startForeignNode("m")
	next := c.follow(corev1.NamespaceNodeLease, metav1.ListOptions{ResourceVersion: stored.ResourceVersion})

	label := func(value string) {
		patch := fmt.Sprintf(`{"metadata":{"labels":{%q:%s}}}`, nodeleases.MemberLabel, value)
		must(c.admin.CoreV1().Nodes().Patch(ctx, "m", types.MergePatchType, []byte(patch), metav1.PatchOptions{}))(t)
	}
	label(`""`)
	if got := c.want(next, watch.Deleted, "m"); got.UID != stored.UID {
		t.Errorf("deleted: %+v", got.ObjectMeta)
	}
	made := c.want(next, watch.Added, "m")
	if got := must(leases.Get(ctx, "m", metav1.GetOptions{}))(t); got.UID == stored.UID || got.UID != made.UID {
		t.Errorf("read %s, told %s, stored %s", got.UID, made.UID, stored.UID)
	}
	for _, namespace := range []string{corev1.NamespaceNodeLease, ""} {
		for _, limit := range []int64{0, 1} {
			list := c.list(namespace, metav1.ListOptions{Limit: limit, FieldSelector: "metadata.name=m"})
			for list.Continue != "" {
				more := c.list(namespace,
					metav1.ListOptions{Limit: limit, FieldSelector: "metadata.name=m", Continue: list.Continue})
				list.Items, list.Continue = append(list.Items, more.Items...), more.Continue
			}
			if len(list.Items) != 1 || list.Items[0].UID != made.UID {
				t.Errorf("namespace %q, pages of %d: %v", namespace, limit, list.Items)
			}
		}
	}
	if _, err := leases.Update(ctx, stored, metav1.UpdateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("renewing the hidden one: %v", err)
	}
	label("null")
	if got := c.want(next, watch.Deleted, "m"); got.UID != made.UID {
		t.Errorf("deleted: %+v", got.ObjectMeta)
	}
	if got := c.want(next, watch.Added, "m"); got.UID != stored.UID || got.ResourceVersion != stored.ResourceVersion {
		t.Errorf("shown again: %+v", got.ObjectMeta)
	}
	label(`""`)
	c.want(next, watch.Deleted, "m")
	c.want(next, watch.Added, "m")
	must(0,
		c.admin.CoreV1().Nodes().Delete(ctx, "m",
			metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &node.UID}}))(t)
	c.want(next, watch.Deleted, "m")
	if got := c.want(next, watch.Added, "m"); got.UID != stored.UID {
		t.Errorf("the member is gone; shown: %+v", got.ObjectMeta)
	}
}

// told is a client's state from a list and a watch: the UID of each lease and, of stored ones,
// the version.
type told map[string]string

func (k told) take(what watch.EventType, l *coordinationv1.Lease) {
	key := l.Namespace + "/" + l.Name
	if what == watch.Deleted {
		delete(k, key)
		return
	}
	k[key] = string(l.UID)
	if _, member := l.Labels[nodeleases.MemberLabel]; !member {
		k[key] += "@" + l.ResourceVersion
	}
}

func toldOf(list *coordinationv1.LeaseList) told {
	k := told{}
	for i := range list.Items {
		k.take(watch.Added, &list.Items[i])
	}
	return k
}

// With any changes of members, foreign nodes and leases, a list and the watch from its revision
// give the newest list, and so does a watch that is resumed at any event.
func TestListAndWatchOfAllLeases(t *testing.T) {
	seeds := uint64(4)
	if testing.Short() {
		seeds = 2
	}
	c := startNodeLeases(t, 2)
	for seed := range seeds {
		rnd := rand.New(rand.NewPCG(seed, 14))
		for _, namespace := range []string{corev1.NamespaceNodeLease, ""} {
			begin := c.list(namespace, metav1.ListOptions{})
			known := toldOf(begin)
			next := c.follow(namespace, metav1.ListOptions{ResourceVersion: begin.ResourceVersion})
			for range 60 {
				c.leaseHistory(rnd)
			}
			mark := fmt.Sprintf("end-%d-%d", seed, len(namespace))
			must(
				c.leases(corev1.NamespaceNodeLease).Create(t.Context(),
					&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: mark}}, metav1.CreateOptions{}))(t)
			want := toldOf(c.list(namespace, metav1.ListOptions{}))

			type moment struct {
				revision string
				known    told
			}
			moments := []moment{{begin.ResourceVersion, maps.Clone(known)}}
			until := func(
				next func() (watch.EventType, *coordinationv1.Lease), known told, each func(*coordinationv1.Lease),
			) {
				for {
					what, l := next()
					known.take(what, l)
					each(l)
					if l.Name == mark {
						return
					}
				}
			}
			until(next, known,
				func(
					l *coordinationv1.Lease,
				) {
					moments = append(moments, moment{l.ResourceVersion, maps.Clone(known)})
				})
			if !maps.Equal(known, want) {
				t.Fatalf("seed %d, namespace %q: the watch gives\n%v\nand a list\n%v", seed, namespace, known, want)
			}
			for i := 0; i < len(moments)-1; i += 1 + len(moments)/12 {
				m := moments[i]
				until(c.follow(namespace, metav1.ListOptions{ResourceVersion: m.revision}), m.known,
					func(*coordinationv1.Lease) {})
				if !maps.Equal(m.known, want) {
					t.Fatalf(
						"seed %d, namespace %q: the watch that was taken up at event %d, revision %s, gives\n%v\nand a list\n%v",
						seed, namespace, i, m.revision, m.known, want)
				}
			}
		}
	}
}

// leaseHistory makes one random write to one of a few names. It may fail: the name may exist, or
// not, or be a member's.
func (c *nodeLeases) leaseHistory(rnd *rand.Rand) {
	ctx, name := c.t.Context(), fmt.Sprint("x", rnd.IntN(4))
	namespace := []string{corev1.NamespaceNodeLease, corev1.NamespaceNodeLease, "default"}[rnd.IntN(3)]
	nodes, leases := c.admin.CoreV1().Nodes(), c.leases(namespace)
	var err error
	switch rnd.IntN(8) {
	case 0:
		_, err = nodes.Create(ctx,
			&corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{nodeleases.MemberLabel: ""}}},
			metav1.CreateOptions{})
	case 1:
		_, err = nodes.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	case 2:
		err = nodes.Delete(ctx, name, metav1.DeleteOptions{})
	case 3:
		value := []string{`""`, "null"}[rnd.IntN(2)]
		_, err = nodes.Patch(ctx, name, types.MergePatchType,
			[]byte(fmt.Sprintf(`{"metadata":{"labels":{%q:%s}}}`, nodeleases.MemberLabel, value)),
			metav1.PatchOptions{})
	case 4, 5:
		_, err = leases.Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}},
			metav1.CreateOptions{})
	case 6:
		_, err = leases.Patch(ctx, name, types.MergePatchType,
			[]byte(fmt.Sprintf(`{"spec":{"leaseTransitions":%d}}`, rnd.IntN(1000))), metav1.PatchOptions{})
	case 7:
		err = leases.Delete(ctx, name, metav1.DeleteOptions{})
	}
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsAlreadyExists(err) && !apierrors.IsForbidden(err) {
		c.t.Fatal(err)
	}
}

// The kubelet of a foreign node writes its own lease with its own certificate, and no other.
func TestKubeletWritesItsOwnLease(t *testing.T) {
	c := startNodeLeases(t, 1)
	ctx := t.Context()
	edge, _ := c.startForeignNode("edge")
	other, _ := c.startForeignNode("other")
	must(0, c.leases(corev1.NamespaceNodeLease).Delete(ctx, "edge", metav1.DeleteOptions{}))(t)
	kubelet := kubernetes.NewForConfigOrDie(
		c.ca.client(t, c.host, subject("system:node:edge", "system:nodes"))).CoordinationV1()
	leases := kubelet.Leases(corev1.NamespaceNodeLease)

	lease := must(leases.Create(ctx, foreignLease(edge), metav1.CreateOptions{}))(t)
	lease.Spec.RenewTime = ptr.To(metav1.NowMicro())
	must(leases.Update(ctx, lease, metav1.UpdateOptions{}))(t)
	must(leases.Get(ctx, "edge", metav1.GetOptions{}))(t)
	must(
		leases.Patch(ctx, "edge", types.MergePatchType, []byte(`{"spec":{"leaseDurationSeconds":50}}`),
			metav1.PatchOptions{}))(t)
	must(0, leases.Delete(ctx, "edge", metav1.DeleteOptions{}))(t)

	nameless := foreignLease(edge)
	nameless.Name, nameless.GenerateName = "", "edge"
	for what, write := range map[string]func() error{
		"another's": func() error {
			another := foreignLease(other)
			another.Name = "third"
			_, err := leases.Create(ctx, another, metav1.CreateOptions{})
			return err
		},
		"a generated name": func() error {
			_, err := leases.Create(ctx, nameless,
				metav1.CreateOptions{})
			return err
		},
		"renewing another's": func() error {
			_, err := leases.Update(ctx, foreignLease(other),
				metav1.UpdateOptions{})
			return err
		},
		"patching another's": func() error {
			_, err := leases.Patch(ctx, "other", types.MergePatchType, []byte(`{"spec":{"leaseDurationSeconds":5}}`),
				metav1.PatchOptions{})
			return err
		},
		"deleting another's": func() error { return leases.Delete(ctx, "other", metav1.DeleteOptions{}) },
		"deleting all": func() error {
			return leases.DeleteCollection(ctx, metav1.DeleteOptions{},
				metav1.ListOptions{})
		},
		"listing": func() error { _, err := leases.List(ctx, metav1.ListOptions{}); return err },
		"elsewhere": func() error {
			elsewhere := foreignLease(edge)
			elsewhere.Namespace = "default"
			_, err := kubelet.Leases("default").Create(ctx, elsewhere, metav1.CreateOptions{})
			return err
		},
	} {
		if err := write(); !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
