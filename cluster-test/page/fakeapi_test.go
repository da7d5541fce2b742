package page

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/adminapi/page"
	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/internal/pagelogin"
	"github.com/barque/barque/membership/gossip"
)

const goodLink, goodSession = pagelogin.LinkPrefix + "good", pagelogin.SessionPrefix + "good"

// fakeAPI answers as a server of a cluster does.
type fakeAPI struct {
	*httptest.Server
	nodes, pods int

	mu       sync.Mutex
	used     bool // the link
	ended    bool // the session
	leader   string
	poor     bool // the user has no rights but in the namespace "default"
	warnings []clusterstatus.Warning
	watchers map[chan string]string // by path
	logs     []string
	written  chan struct{}  // gets one for each line that comes later
	asked    map[string]int // requests by path
	now      time.Time
}

func newAPI(t *testing.T, nodes, pods int) *fakeAPI {
	f := &fakeAPI{nodes: nodes, pods: pods, leader: "m1", watchers: map[chan string]string{}, asked: map[string]int{},
		written: make(chan struct{}, 8), now: time.Now()}
	files := page.Files()
	f.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, page.Prefix) {
			files.ServeHTTP(w, r)
			return
		}
		f.mu.Lock()
		f.asked[r.URL.Path]++
		f.mu.Unlock()
		f.api(w, r)
	}))
	f.EnableHTTP2 = true
	f.StartTLS()
	t.Cleanup(func() {
		f.CloseClientConnections()
		f.Close()
	})
	return f
}

func answer(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(value)
}

func refuse(w http.ResponseWriter, code int, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{Status: "Failure", Message: message, Code: int32(code)})
}

func (f *fakeAPI) api(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	ended, poor := f.ended, f.poor
	f.mu.Unlock()
	credential := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	if r.URL.Path == pagelogin.SessionPath && r.Method == http.MethodPost {
		f.mu.Lock()
		defer f.mu.Unlock()
		if credential != goodLink || f.used {
			refuse(w, http.StatusUnauthorized, "Unauthorized")
			return
		}
		f.used = true
		answer(w, page.Opened{Made: page.Made{Token: goodSession, Expires: f.now.Add(12 * time.Hour)}, User: "ann"})
		return
	}
	if ended || credential != goodSession && credential != "pasted" {
		refuse(w, http.StatusUnauthorized, "Unauthorized")
		return
	}
	path, query := r.URL.Path, r.URL.Query()
	switch {
	case path == pagelogin.SessionPath && r.Method == http.MethodDelete:
		f.mu.Lock()
		f.ended = true
		f.mu.Unlock()
		answer(w, []page.Session{})
	case path == pagelogin.SessionPath:
		answer(w, page.Self{User: "ann@laptop", Groups: []string{"barque:admins"}, Session: credential == goodSession,
			Expires: f.now.Add(12 * time.Hour), Server: "m1", Version: "v0.1.0",
			Servers: []page.Server{{Name: "m1", URL: f.URL}, {Name: "m2", URL: "https://127.0.0.2:6443"}}})
	case poor && !strings.Contains(path, "/namespaces/default/"):
		refuse(w, http.StatusForbidden, fmt.Sprintf("User %q cannot get path %q", "ann@laptop", path))
	case path == clusterstatus.StatusPath:
		answer(w, clusterstatus.NewBrief(f.status()))
	case path == clusterstatus.GossipPath:
		answer(w, f.gossip())
	case path == pagelogin.HistoryPath:
		f.history(w, query.Get("on"), query.Get("since"))
	case strings.HasSuffix(path, "/log"):
		f.log(w, r)
	case query.Get("watch") != "":
		f.watch(w, r)
	default:
		f.list(w, r)
	}
}

func (f *fakeAPI) status() *clusterstatus.ClusterStatus {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := &clusterstatus.ClusterStatus{ID: "c", From: []string{"m1"}, Time: time.Now(), Health: clusterstatus.Healthy,
		Leader: f.leader, LeaderSince: f.now.Add(-3 * time.Hour), LeaderReason: "nothing was heard of m3 for 1.1s",
		Term: 7, Revision: 48211, Warnings: f.warnings,
		Quorum: clusterstatus.QuorumStatus{Voters: 3, Needed: 2, Answering: 3, MayFail: 1},
		Store:  clusterstatus.SizeStatus{Keys: 2417, Bytes: 6 << 20},
		Backup: &clusterstatus.BackupFile{Server: "m2", Created: f.now.Add(-40 * time.Minute), Bytes: 3 << 20},
		LeaderChanges: []clusterstatus.LeaderChange{
			{At: f.now.Add(-3 * time.Hour), Term: 7, Leader: "m1", Before: "m3", GapSeconds: 1.43,
				Reason: "nothing was heard of m3 for 1.1s"},
			{At: f.now.Add(-3*time.Hour - time.Second), Term: 6, Before: "m3",
				Reason: "nothing was heard of m3 for 1.1s"},
			{At: f.now.Add(-30 * time.Hour), Term: 6, Leader: "m3", Before: "m2", GapSeconds: 0.012,
				Reason: "m2 handed over to m3"},
		}}
	if f.leader == "" {
		s.Health, s.LeaderReason, s.LeaderSince = clusterstatus.NoQuorum, "", time.Time{}
	} else if len(f.warnings) > 0 {
		s.Health = clusterstatus.Degraded
	}
	for i := 1; i <= 3; i++ {
		name, state := fmt.Sprint("m", i), "follower"
		m := clusterstatus.MemberStatus{Name: name, Role: "server", Address: fmt.Sprint("10.0.0.", i),
			Version: "v0.1.0",
			Gossip:  gossip.Alive, Voter: true, Started: f.now.Add(-50 * time.Hour),
			Health:       &clusterstatus.HealthStatus{Healthy: true},
			Disk:         &clusterstatus.VolumeStatus{Path: "/var/lib/barque", Bytes: 100 << 30, Free: 61 << 30},
			Certificates: []clusterstatus.CertificateStatus{{Name: "api", NotAfter: f.now.Add(290 * 24 * time.Hour)}},
			Store: &clusterstatus.StoreStatus{Term: 7, Applied: 51002, Committed: 51002, Revision: 48211, Hash: "ab12",
				DiskP50Seconds: 0.00014, DiskP99Seconds: 0.0021}}
		if name == f.leader {
			state = "leader"
		} else {
			m.Store.LastContactSeconds, m.Store.LagSeconds = new(0.031), new(0.0)
		}
		m.Store.State = state
		for j := 1; j <= 3; j++ {
			if i != j {
				rtt := 0.0004 * float64(i+j)
				m.Ways = append(m.Ways, clusterstatus.WayStatus{To: fmt.Sprint("m", j), RTTSeconds: &rtt})
			}
		}
		s.Members = append(s.Members, m)
	}
	for i := range f.nodes - 3 {
		s.Members = append(s.Members,
			clusterstatus.MemberStatus{Name: nodeName(i + 3), Role: "agent", Gossip: gossip.Alive})
	}
	return s
}

func nodeName(i int) string {
	if i < 3 {
		return fmt.Sprint("m", i+1)
	}
	return fmt.Sprintf("worker-%04d", i-2)
}

func (f *fakeAPI) gossip() clusterstatus.GossipViews {
	var views []gossip.View
	for v := range 3 {
		view := gossip.View{From: nodeName(v), At: time.Now()}
		for i := range f.nodes {
			seen := gossip.Seen{Name: nodeName(i), Role: "agent",
				Address: fmt.Sprintf("10.0.%d.%d:7946", i/250, i%250+1),
				State:   gossip.Alive, Since: f.now.Add(-50 * time.Hour),
				RTT: 0.0003 + 0.0002*float64((i+v)%5), Heard: new(time.Now())}
			if i < 3 {
				seen.Role = "server"
			}
			if i == 11 {
				seen.State, seen.Since = gossip.Dead, f.now.Add(-4*time.Minute)
			}
			if i == 14 {
				seen.Faults = []string{"disk"}
			}
			view.Members = append(view.Members, seen)
		}
		views = append(views, view)
	}
	return clusterstatus.NewGossipViews("m1", views, nil)
}

func (f *fakeAPI) history(w http.ResponseWriter, on, since string) {
	after, _ := strconv.ParseInt(since, 10, 64)
	end, n := time.Now().Unix()/10*10, 0.0
	for _, c := range on {
		n += float64(c)
	}
	var at []int64
	series := map[string][]any{}
	for t := end - 3590; t <= end; t += 10 {
		if t <= after {
			continue
		}
		at = append(at, t)
		x := float64(t%3600)/300 + n
		add := func(name string, v float64) { series[name] = append(series[name], v) }
		add("writes", 42+20*math.Sin(x)+6*math.Sin(7*x))
		add("diskP99", 0.002+0.0008*math.Sin(3*x))
		add("requests2xx", 180+60*math.Sin(x/2))
		add("requests4xx", 0.4)
		add("requests5xx", 0)
		add("requestP99", 0.03+0.01*math.Sin(2*x))
		add("inFlight", math.Round(6+3*math.Sin(4*x)))
		add("watchers", 220)
		add("watchEvents", 900+200*math.Sin(x))
		add("applyLag", 0)
		add("term", 7)
		add("memory", (410+8*math.Sin(x/3))*(1<<20))
		add("cpu", 0.22+0.05*math.Sin(5*x))
		add("goroutines", 1900)
		add("openFiles", 240)
		add("stateBytes", 6<<20)
		add("keys", 2417)
		add("pods", float64(f.pods))
		add("nodes", float64(f.nodes))
		add("events", 55)
		if on == "m1" {
			add("commitP99", 0.004+0.002*math.Sin(x))
		} else {
			series["commitP99"] = append(series["commitP99"], nil)
		}
	}
	answer(w, map[string]any{"server": on, "every": 10, "at": at, "series": series})
}

// kinds are the columns of tables and their rows.
var kinds = map[string]struct {
	columns []string
	rows    func(f *fakeAPI) int
	cells   func(f *fakeAPI, i int) (namespace, name string, cells []any)
}{
	"pods": {[]string{"Name", "Ready", "Status", "Restarts", "Age", "IP", "Node"},
		func(f *fakeAPI) int { return f.pods },
		func(f *fakeAPI, i int) (string, string, []any) {
			name, namespace := fmt.Sprintf("web-%d-%05d", i%7, i), "default"
			if i%4 == 3 {
				namespace = "kube-system"
			}
			ready, status, restarts := "1/1", "Running", any("0")
			if i%97 == 5 {
				ready, status, restarts = "0/1", "CrashLoopBackOff", "14 (2m ago)"
			}
			return namespace, name, []any{name, ready, status, restarts, "3h",
				fmt.Sprintf("10.42.%d.%d", i/250%250, i%250), nodeName(i % f.nodes)}
		}},
	"nodes": {[]string{"Name", "Status", "Roles", "Age", "Version", "Internal-IP"},
		func(f *fakeAPI) int { return f.nodes },
		func(_ *fakeAPI, i int) (string, string, []any) {
			status, roles := "Ready", "<none>"
			if i < 3 {
				roles = "control-plane"
			}
			if i == 11 {
				status = "NotReady"
			}
			return "", nodeName(i), []any{nodeName(i), status, roles, "50h", "v1.37.2",
				fmt.Sprintf("10.0.%d.%d", i/250, i%250+1)}
		}},
	"deployments": {[]string{"Name", "Ready", "Up-to-date", "Available", "Age", "Containers", "Images", "Selector"},
		func(*fakeAPI) int { return 12 }, func(_ *fakeAPI, i int) (string, string, []any) {
			name, ready := fmt.Sprintf("web-%d", i), "3/3"
			if i == 4 {
				ready = "2/3"
			}
			return "default", name, []any{name, ready, 3, 3, "3h", "web", "registry.local/web:1.4", "app=web"}
		}},
	"statefulsets": {[]string{"Name", "Ready", "Age", "Containers", "Images"}, func(*fakeAPI) int { return 1 },
		func(*fakeAPI, int) (string, string, []any) {
			return "default", "db", []any{"db", "3/3", "2d", "db", "registry.local/postgres:17"}
		}},
	"daemonsets": {[]string{"Name", "Desired", "Current", "Ready", "Up-to-date", "Available",
		"Node Selector", "Age", "Containers", "Images"},
		func(*fakeAPI) int { return 1 }, func(f *fakeAPI, _ int) (string, string, []any) {
			return "kube-system", "logs", []any{"logs", f.nodes, f.nodes, f.nodes - 1, f.nodes, f.nodes - 1,
				"<none>", "2d", "logs", "registry.local/logs:2"}
		}},
	"jobs": {[]string{"Name", "Status", "Completions", "Duration", "Age"}, func(*fakeAPI) int { return 1 },
		func(*fakeAPI, int) (string, string, []any) {
			return "default", "migrate", []any{"migrate", "Complete", "1/1", "12s", "3h"}
		}},
	"cronjobs": {[]string{"Name", "Schedule", "Suspend", "Active", "Last Schedule", "Age"},
		func(*fakeAPI) int { return 1 },
		func(*fakeAPI, int) (string, string, []any) {
			return "default", "report", []any{"report", "0 3 * * *", "False", 0, "5h", "9d"}
		}},
}

func (f *fakeAPI) meta(namespace, name string) map[string]any {
	meta := f.parsed(`{"creationTimestamp": "$3h"}`)
	meta["namespace"], meta["name"], meta["uid"] = namespace, name, namespace+name
	return meta
}

func (f *fakeAPI) list(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	resource, namespace := parts[len(parts)-1], ""
	if i := slices.Index(parts, "namespaces"); i >= 0 && i+2 < len(parts) {
		namespace = parts[i+1]
	}
	query := r.URL.Query()
	selector := query.Get("fieldSelector")
	begin, _ := strconv.Atoi(query.Get("continue"))
	limit, _ := strconv.Atoi(query.Get("limit"))
	list := map[string]any{"resourceVersion": "100"}
	name, one := strings.CutPrefix(selector, "metadata.name=")
	if kind, ok := kinds[resource]; ok && strings.Contains(r.Header.Get("Accept"), "as=Table") {
		rows, i := []any{}, begin
		for ; i < kind.rows(f) && len(rows) < limit; i++ {
			ns, name, cells := kind.cells(f, i)
			node, ofNode := strings.CutPrefix(selector, "spec.nodeName=")
			ill := strings.HasPrefix(selector, "status.phase")
			if namespace != "" && ns != namespace || ill && (cells[2] == "Running" || i > 500) ||
				ofNode && cells[6] != node {
				continue
			}
			rows = append(rows, map[string]any{"cells": cells, "object": map[string]any{"metadata": f.meta(ns, name)}})
		}
		if i < kind.rows(f) {
			list["continue"] = strconv.Itoa(i)
		}
		var columns []any
		for _, c := range kind.columns {
			columns = append(columns, map[string]any{"name": c, "type": "string"})
		}
		answer(w, map[string]any{"kind": "Table", "metadata": list, "columnDefinitions": columns, "rows": rows})
		return
	}
	items := []any{}
	switch {
	case resource == "namespaces":
		for _, name := range []string{"default", "kube-system"} {
			items = append(items, map[string]any{"metadata": f.meta("", name)})
		}
	case resource == "pods" && one:
		items = append(items, f.pod(namespace, name))
	case resource == "nodes" && one:
		items = append(items, f.node(name))
	case resource == "events":
		const pod = "web-0-00005"
		items = append(items,
			f.event("default", pod, "Warning", "BackOff",
				"Back-off restarting failed container web in pod web-0-00005"),
			f.event("default", pod, "Normal", "Pulled", "Container image \"registry.local/web:1.4\" already present"))
	case resource == "deployments":
		items = append(items, map[string]any{"metadata": f.parsed(changedText)})
	}
	answer(w, map[string]any{"kind": "List", "metadata": list, "items": items})
}

// parsed is an object of a text in JSON, whose $3h and the like are times so long ago.
func (f *fakeAPI) parsed(text string) (out map[string]any) {
	for name, ago := range map[string]time.Duration{"$3h": 3 * time.Hour, "$50h": 50 * time.Hour,
		"$6m": 6 * time.Minute, "$2m": 2 * time.Minute, "$90s": 90 * time.Second} {
		text = strings.ReplaceAll(text, name, f.now.Add(-ago).UTC().Format(time.RFC3339))
	}
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		panic(err)
	}
	return out
}

const podText = `{"spec": {"nodeName": "worker-0001", "serviceAccountName": "default", "containers": [
	{"name": "web", "image": "registry.local/web:1.4"}, {"name": "proxy", "image": "registry.local/proxy:9"}]},
"status": {"phase": "Running", "qosClass": "Burstable", "podIPs": [{"ip": "10.42.0.9"}], "startTime": "$3h",
	"conditions": [{"type": "Ready", "status": "False", "reason": "ContainersNotReady",
		"message": "containers with unready status: [web]", "lastTransitionTime": "$2m"}],
	"containerStatuses": [
		{"name": "web", "ready": false, "restartCount": 14, "state": {"waiting": {"reason": "CrashLoopBackOff",
			"message": "back-off 5m0s restarting failed container"}},
			"lastState": {"terminated": {"reason": "Error", "exitCode": 2}}},
		{"name": "proxy", "ready": true, "restartCount": 0, "state": {"running": {"startedAt": "$3h"}}}]}}`

func (f *fakeAPI) pod(namespace, name string) map[string]any {
	pod := f.parsed(podText)
	pod["metadata"] = f.meta(namespace, name)
	return pod
}

const nodeText = `{"spec": {"podCIDRs": ["10.42.7.0/24"]}, "status": {
	"capacity": {"cpu": "8", "memory": "32921744Ki", "pods": "110"},
	"allocatable": {"cpu": "7800m", "memory": "31921744Ki", "pods": "110"},
	"nodeInfo": {"kubeletVersion": "v1.37.2", "osImage": "Debian GNU/Linux 12", "kernelVersion": "6.18",
		"containerRuntimeVersion": "containerd://2.4.2"},
	"addresses": [{"type": "InternalIP", "address": "10.0.0.4"}],
	"conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "the kubelet is ready",
			"lastTransitionTime": "$50h"},
		{"type": "MemoryPressure", "status": "False", "reason": "KubeletHasSufficientMemory",
			"lastTransitionTime": "$50h"}]}}`

func (f *fakeAPI) node(name string) map[string]any {
	node := f.parsed(nodeText)
	node["metadata"] = f.meta("", name)
	return node
}

// changedText is the metadata of a Deployment that was changed.
const changedText = `{"namespace": "default", "name": "web-4", "creationTimestamp": "$3h", "managedFields": [
	{"manager": "kubectl-client-side-apply", "operation": "Update", "time": "$6m", "fieldsV1": {"f:spec": {
		"f:replicas": {}, "f:template": {"f:spec": {"f:containers": {
			"k:{\"name\":\"web\"}": {".": {}, "f:image": {}}}}}}}}]}`

func (f *fakeAPI) event(namespace, pod, kind, reason, message string) map[string]any {
	event := f.parsed(`{"count": 14, "firstTimestamp": "$90s", "lastTimestamp": "$90s"}`)
	event["metadata"] = f.meta(namespace, pod+"."+reason)
	event["involvedObject"] = map[string]any{"kind": "Pod", "name": pod, "namespace": namespace}
	event["type"], event["reason"], event["message"] = kind, reason, message
	return event
}

// watch sends the events that send is called with.
func (f *fakeAPI) watch(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	w.(http.Flusher).Flush()
	events := make(chan string, 16)
	f.mu.Lock()
	f.watchers[events] = r.URL.Path
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		delete(f.watchers, events)
		f.mu.Unlock()
	}()
	for {
		select {
		case e := <-events:
			if _, err := w.Write([]byte(e + "\n")); err != nil {
				return
			}
			w.(http.Flusher).Flush()
		case <-r.Context().Done():
			return
		}
	}
}

// send sends an event about a row of a table to the watchers of a path, and returns their number.
func (f *fakeAPI) send(kind, path, namespace, name string, cells ...any) (sent int) {
	data, err := json.Marshal(map[string]any{"type": kind, "object": map[string]any{"kind": "Table", "rows": []any{
		map[string]any{"cells": cells, "object": map[string]any{"metadata": f.meta(namespace, name)}}}}})
	if err != nil {
		panic(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for to, at := range f.watchers {
		if at == path {
			to <- string(data)
			sent++
		}
	}
	return sent
}

func (f *fakeAPI) log(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/plain")
	flush := w.(http.Flusher).Flush
	for n := 0; ; {
		f.mu.Lock()
		all := f.logs
		f.mu.Unlock()
		for ; n < len(all); n++ {
			at := f.now.Add(time.Duration(n) * time.Millisecond).UTC().Format(time.RFC3339Nano)
			if _, err := fmt.Fprintf(w, "%s %s\n", at, all[n]); err != nil {
				return
			}
		}
		flush()
		select {
		case <-r.Context().Done():
			return
		case <-f.written:
		}
	}
}

func (f *fakeAPI) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}
