package clustertest

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/cluster-test/browser"
	"github.com/barque/barque/internal/needs"
)

// pageTour is a cluster with its page in a browser.
type pageTour struct {
	*Space
	p      *browser.Page
	dir    string
	server string // whose page it is
}

func (p *pageTour) url(server string) string {
	const address = `jsonpath={.status.addresses[?(@.type=="InternalIP")].address}`
	return "https://" + p.K("get", "node", server, "-o", address) + ":6443"
}

// link makes a link to the page of a server, as an administrator.
func (p *pageTour) link(server string) string {
	var made struct {
		URL string `json:"url"`
	}
	out := p.Barque(p, "ui", "--server", p.url(server), "-o", "json")
	if err := json.Unmarshal([]byte(out), &made); err != nil || made.URL == "" {
		p.Fatalf("barque ui prints %s: %v", out, err)
	}
	return made.URL
}

func (p *pageTour) to(hash string, texts ...string) {
	p.Helper()
	if err := p.p.Eval("void (location.hash = '"+hash+"')", nil); err != nil {
		p.Fatal(err)
	}
	p.p.Shows(texts...)
}

func (p *pageTour) shot(name string) { p.p.Shot(filepath.Join(p.dir, name+".png")) }

// TestPage: the page of a server shows the cluster, live, and goes on through the death of the
// leader. When its own server dies it says so, and goes on at another one with the same session,
// until that is ended.
func TestPage(t *testing.T) {
	needs.AllTests(t)
	browser.Find(t)
	images, err := testRegistry()
	if err != nil {
		t.Fatal(err)
	}
	s := NewSpace(t, Start(t, Options{Servers: 3, NodeArgs: fastTimes, Registry: images}))
	tour := &pageTour{Space: s, dir: os.Getenv("PAGE_SHOTS")}
	if tour.dir == "" {
		tour.dir = t.TempDir()
	}
	s.K("apply", "-f", examples+"hello.yaml")
	s.K("rollout", "status", "deployment/hello", "--timeout=120s")
	leader := s.Leader(s)
	others := slices.DeleteFunc(slices.Clone(s.Nodes()), func(n string) bool { return n == leader })
	tour.server = others[0]
	chromium := browser.Start(t, "")
	tour.p = chromium.Open(1280, 860)
	tour.views()
	if t.Failed() {
		return
	}
	tour.manyPages(chromium)
	tour.leaderDies(leader)
	tour.ownServerDies(others[1])
	for _, fault := range tour.p.Faults() {
		t.Errorf("in the page: %s", fault)
	}
}

func (p *pageTour) views() {
	p.p.Go(p.link(p.server))
	p.p.Shows("Healthy", "Nothing to do", "Nodes ready", "3 of 3")
	var first float64
	if err := p.p.Eval("performance.getEntriesByName('barque first view')[0].startTime", &first); err != nil {
		p.Fatal(err)
	}
	p.Logf("from opening the link to the first view: %.0f ms", first)
	p.shot("cluster-overview")
	pod := p.Pods("app=hello")[0]
	p.to("#/raft", "Why "+p.Leader(p)+" leads", "follower", "equal")
	p.shot("cluster-raft")
	p.to("#/gossip", "3 members", "leader")
	p.shot("cluster-gossip")
	p.to("#/nodes", "3 nodes", "control-plane", "Ready")
	p.to("#/nodes/"+p.server, "Kubelet", "Pods here", "hello-")
	p.to("#/workloads", "hello", "3/3")
	p.to("#/workloads/deployments/"+p.Namespace+"/hello", "Available", "barque.local/hello:1", pod.Name)
	p.to("#/pods", pod.Name, "Running")
	p.to("#/pods/"+p.Namespace+"/"+pod.Name, "listening on", "live", "Started")
	p.shot("cluster-pod")
	p.to("#/events", "Scheduled")
	p.to("#/changes", "hello", "kubectl-client-side-apply")
	p.shot("cluster-changes")
	p.K("scale", "deployment/hello", "--replicas=4")
	p.to("#/workloads", "4/4")
	p.to("#/metrics", "Writes", "Goroutines", p.server)
	p.p.Await("[...document.querySelectorAll('.plot path')].filter(p => p.getAttribute('d')).length > 20")
	p.shot("cluster-metrics")
	// Reading is all that the session may do, though its user is an administrator.
	for path, method := range map[string]string{"/api/v1/namespaces": "POST", "/api/v1/secrets": "GET",
		"/barque/v1/tokens": "GET", "/barque/v1/snapshot-save": "GET",
		"/api/v1/namespaces/" + p.Namespace + "/pods/" + pod.Name: "DELETE"} {
		var status int
		err := p.p.Eval(fmt.Sprintf(`fetch(%q, {method: %q,
			headers: {Authorization: "Bearer " + sessionStorage.getItem("barque.credential")}}).then(r => r.status)`,
			path, method), &status)
		if err != nil || status != 403 {
			p.Errorf("%s %s by a session: %d, %v", method, path, status, err)
		}
	}
}

// memory is the resident memory of the page's server, in MiB.
func (p *pageTour) memory() (most float64) {
	pids, err := p.processes(p.server)
	if err != nil {
		p.Fatal(err)
	}
	for _, pid := range pids {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)) // one that has ended has none
		for line := range strings.Lines(string(text)) {
			var kib float64
			if n, _ := fmt.Sscanf(line, "VmRSS: %f kB", &kib); n == 1 {
				most = max(most, kib/1024)
			}
		}
	}
	return most
}

// manyPages opens ten pages at one server, for the figures of its memory.
func (p *pageTour) manyPages(chromium *browser.Browser) {
	before := p.memory()
	var pages []*browser.Page
	for range 10 {
		page := chromium.Open(1280, 860)
		pages = append(pages, page)
		page.Go(p.link(p.server))
		page.Shows("Healthy")
		if err := page.Eval("void (location.hash = '#/pods')", nil); err != nil {
			p.Fatal(err)
		}
		page.Shows("hello-")
	}
	p.Logf("%s has %.0f MiB, and with ten more pages %.0f MiB", p.server, before, p.memory())
	for _, page := range pages {
		page.Close()
	}
	p.p.Front()
	p.p.Await("!document.hidden")
}

func (p *pageTour) leaderDies(leader string) {
	p.to("#/raft", "Failovers")
	p.Dev(p, "kill", leader)
	p.p.Await("document.body.innerText.includes('No leader') || document.body.innerText.includes('" + leader + " →')")
	p.shot("cluster-leader-dies")
	p.p.Shows(leader+" → ", "no answer", "Why ")
	p.p.Await(`[...document.querySelectorAll("td")].some(d => d.textContent.startsWith("` + leader + ` → ") && / m?s$/.test(d.nextSibling.nextSibling.textContent))`)
	p.shot("cluster-leader-dead")
	p.to("#/overview", "Degraded", "Critical")
	p.shot("cluster-degraded")
	p.Dev(p, "start", leader)
	p.p.Shows("Healthy")
}

func (p *pageTour) ownServerDies(other string) {
	p.to("#/overview", "Healthy")
	p.Dev(p, "kill", p.server)
	p.p.Shows("No answer", "Go on at", other)
	p.shot("cluster-no-answer")
	if err := p.p.Eval(`void [...document.querySelectorAll(".notice a")].find(a => a.textContent === "`+other+`").click()`, nil); err != nil {
		p.Fatal(err)
	}
	p.p.Await("location.origin === '" + p.url(other) + "'")
	p.p.Shows("barque:admin", "Degraded")
	p.Dev(p, "start", p.server)
	p.p.Shows("Healthy")
	if out := p.Barque(p, "ui", "end", "--user", "barque:admin"); !strings.Contains(out, "barque:admin") {
		p.Errorf("barque ui end prints %s", out)
	}
	p.p.Shows("The session has ended")
}

// The objects of TestPageWithManyObjects. No kubelet is behind the nodes, and a gate keeps the pods
// from the scheduler.
const manyNodes, manyPods, atOnce = 1000, 10000, 16

// TestPageWithManyObjects: with 1,000 nodes and 10,000 pods the page lists all of them, finds one,
// and holds few elements.
func TestPageWithManyObjects(t *testing.T) {
	needs.AllTests(t)
	chromium := browser.Start(t, "")
	s := NewSpace(t, Start(t, Options{Servers: 1}))
	tour := &pageTour{Space: s, server: s.Nodes()[0]}
	create := func(n int, one func(i int) error) {
		var creating errgroup.Group
		creating.SetLimit(atOnce)
		for i := range n {
			creating.Go(func() error { return one(i) })
		}
		if err := creating.Wait(); err != nil {
			t.Fatal(err)
		}
	}
	create(manyNodes, func(i int) error {
		_, err := s.Client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("hollow-%04d", i)},
			Spec:       corev1.NodeSpec{Unschedulable: true}}, metav1.CreateOptions{})
		return err
	})
	create(manyPods, func(i int) error {
		_, err := s.Client.CoreV1().Pods(s.Namespace).Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("gated-%05d", i)},
			Spec: corev1.PodSpec{SchedulingGates: []corev1.PodSchedulingGate{{Name: "example.com/never"}},
				Containers: []corev1.Container{{Name: "c", Image: "example.com/none:1"}}}}, metav1.CreateOptions{})
		return err
	})
	p := chromium.Open(1280, 860)
	before := tour.memory()
	p.Go(tour.link(tour.server))
	p.Shows("Pods that do not run")
	for _, view := range []struct{ at, shows string }{
		{"#/nodes", "1\u202f001 nodes"}, {"#/pods?ns=" + s.Namespace, "10\u202f000 pods"},
		{"#/pods?ns=" + s.Namespace + "&q=09871", "gated-09871"},
	} {
		if err := p.Eval("void (location.hash = '"+view.at+"')", nil); err != nil {
			t.Fatal(err)
		}
		p.Shows(view.shows)
		p.Await("!document.body.innerText.includes(' …') && document.querySelectorAll('.grid .line').length < 80")
	}
	var heap float64
	if err := p.Eval("performance.memory.usedJSHeapSize / 1048576", &heap); err != nil {
		t.Fatal(err)
	}
	t.Logf("the page's heap has %.0f MiB; the server has %.0f MiB, and had %.0f MiB before the page", heap,
		tour.memory(), before)
}
