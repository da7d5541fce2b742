package clustertest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/barque/barque/internal/syncbuf"
)

const examples = "../examples/"

// The first thing people do: an application of three pods, seen and changed by kubectl in all the
// ways that they know. The parts build on each other.
func TestMyApp(t *testing.T) {
	s := newSpace(t)
	const image = "library/nginx:1.21.6"
	manifestsBefore, blobsBefore := s.Registry.Pulls(image)

	s.K("apply", "-f", examples+"my-app.yaml")
	s.K("rollout", "status", "deployment/myapp", "--timeout=60s")
	if manifests, blobs := s.Registry.Pulls(image); manifests == manifestsBefore || blobs == blobsBefore {
		t.Errorf("nginx runs, but the mirror of docker.io was asked for %d manifests and %d blobs",
			manifests-manifestsBefore, blobs-blobsBefore)
	}
	pods := s.Pods("app=myapp")
	s.checkSpread(pods)
	s.Run("columns", checkColumns)
	s.Run("network", func(s *Space) { checkNetwork(s, pods) })
	s.Run("logs", func(s *Space) { checkLogs(s, pods[0].Name) })
	s.Run("exec", func(s *Space) { checkExec(s, pods[0].Name) })
	s.Run("cp", func(s *Space) { checkCopy(s, pods[0].Name) })
	s.Run("port-forward", func(s *Space) { checkPortForward(s, pods[0].Name) })
	s.Run("describe", func(s *Space) { checkDescribe(s, pods[0].Name) })
	s.Run("healing", checkHealing)
	s.Run("scale", checkScale)
	s.Run("rollout", checkRollout)
	s.Run("delete", checkDelete)
}

func (s *Space) checkSpread(pods []corev1.Pod) {
	s.Helper()
	var nodes []string
	for _, p := range pods {
		nodes = append(nodes, p.Spec.NodeName)
		if p.Status.PodIP == "" || len(p.OwnerReferences) != 1 || p.OwnerReferences[0].Kind != "ReplicaSet" {
			s.Errorf("pod %s has the address %q and the owners %v", p.Name, p.Status.PodIP, p.OwnerReferences)
		}
	}
	slices.Sort(nodes)
	if !slices.Equal(nodes, s.Nodes()) {
		s.Errorf("the pods are on %v, want one on each of %v", nodes, s.Nodes())
	}
}

func checkColumns(s *Space) {
	for what, want := range map[string]string{
		"deployments": `NAME +READY +UP-TO-DATE +AVAILABLE +AGE +CONTAINERS +IMAGES +SELECTOR\nmyapp +3/3 +3 +3 +\S+ +nginx +nginx:1.21.6 +app=myapp\n`,
		"replicasets": `NAME +DESIRED +CURRENT +READY +AGE +CONTAINERS +IMAGES +SELECTOR\nmyapp-\w+ +3 +3 +3 +\S+ +nginx +nginx:1.21.6 +app=myapp,pod-template-hash=\w+\n`,
		"pods":        `NAME +READY +STATUS +RESTARTS +AGE +IP +NODE +NOMINATED NODE +READINESS GATES\n(myapp-\w+-\w{5} +1/1 +Running +0 +\S+ +10\.42\.\d+\.\d+ +s\d +<none> +<none>\n){3}`,
		"services":    `NAME +TYPE +CLUSTER-IP +EXTERNAL-IP +PORT\(S\) +AGE +SELECTOR\nmyapp +ClusterIP +10\.43\.\d+\.\d+ +<none> +80/TCP +\S+ +app=myapp\n`,
		"nodes":       `NAME +STATUS +ROLES +AGE +VERSION +INTERNAL-IP +EXTERNAL-IP +OS-IMAGE +KERNEL-VERSION +CONTAINER-RUNTIME\n(s\d +Ready +control-plane +\S+ +v1\.37\.\d+\+barque\S* +10\.\d+\.0\.1\d +<none> +.+ +\S+ +containerd://\S+\n){3}`,
	} {
		if got := s.K("get", what, "-o", "wide"); !regexp.MustCompile("^" + want + "$").MatchString(got) {
			s.Errorf("kubectl get %s -o wide shows\n%s\nwhich does not match\n%s", what, got, want)
		}
	}
}

// checkNetwork: pods reach each other across nodes; the Service answers on its address from pods
// and from nodes, and on its node port at every node.
func checkNetwork(s *Space, pods []corev1.Pod) {
	wget := func(from, url string) Result {
		return s.KResult("exec", from, "--", "timeout", "10", "wget", "-q", "-O-", url) // brief: it is tried again
	}
	welcome := func(r Result) error {
		if r.Error == nil && !strings.Contains(r.Out, "nginx:1.21.6") {
			return fmt.Errorf("the answer is %q", r.Out)
		}
		return r.Error
	}
	for _, from := range pods {
		for _, to := range pods {
			// Without a probe a pod is ready before nginx has opened its port.
			Eventually(s, deadline, fmt.Sprintf("from pod on %s to pod on %s", from.Spec.NodeName, to.Spec.NodeName),
				func(context.Context) error {
					return welcome(wget(from.Name, "http://"+to.Status.PodIP))
				})
		}
	}
	s.K("patch", "service", "myapp", "-p", `{"spec":{"type":"NodePort"}}`)
	service := s.K("get", "service", "myapp", "-o", "jsonpath={.spec.clusterIP} {.spec.ports[0].nodePort}")
	address, port, _ := strings.Cut(service, " ")
	for _, p := range pods {
		// The rules reach each node in its own time.
		for from, fetch := range map[string]func() Result{
			"pod " + p.Name:           func() Result { return wget(p.Name, "http://"+address) },
			"node " + p.Spec.NodeName: func() Result { return s.httpFrom(p.Spec.NodeName, "http://"+address) },
		} {
			Eventually(s, deadline, "from "+from+" to the ClusterIP",
				func(context.Context) error { return welcome(fetch()) })
		}
		Eventually(s, deadline, "the node port at "+p.Spec.NodeName, func(ctx context.Context) error {
			return get(ctx, "http://"+net.JoinHostPort(p.Status.HostIP, port), "nginx:1.21.6")
		})
	}
}

// httpFrom fetches a URL from a node itself. It uses apt's helper for http, which every machine
// with apt has and which needs no shell and no curl. A pod's busybox is not on the node.
func (s *Space) httpFrom(node, url string) Result {
	// brief: it is tried again
	return s.OnResult(s.Context(), node, "bash", "-c", `
		hostport=${1#http://}; host=${hostport%%:*}; port=80; [[ $hostport == *:* ]] && port=${hostport##*:}
		exec 3<>"/dev/tcp/$host/$port"; printf 'GET / HTTP/1.0\r\nHost: x\r\n\r\n' >&3; timeout 10 cat <&3`, "bash",
		url)
}

// get fetches a URL from this machine.
func get(ctx context.Context, url, want string) error {
	ctx, cancel := TryOnce(ctx)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	request.Close = true
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && !strings.Contains(string(body), want) {
		err = fmt.Errorf("%s answers %s", url, body)
	}
	return err
}

func checkLogs(s *Space, pod string) {
	ip := s.Pod(pod).Status.PodIP
	s.K("exec", pod, "--", "wget", "-q", "-O/dev/null", "http://"+ip+"/?first")
	Eventually(s, deadline, "the request in the log", func(context.Context) error { // it is written after the answer
		if log := s.K("logs", pod); !strings.Contains(log, "GET /?first") {
			return fmt.Errorf("it has\n%s", log)
		}
		return nil
	})
	if log := s.K("logs", pod, "--tail=1"); strings.Count(log, "\n") != 1 {
		s.Errorf("--tail=1 shows %q", log)
	}
	if log := s.K("logs", pod, "--timestamps",
		"--tail=1"); !regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z `).MatchString(log) {
		s.Errorf("--timestamps shows %q", log)
	}
	follow := s.background("logs", "-f", "--tail=0", pod)
	Eventually(s, deadline, "a new request in logs -f", func(ctx context.Context) error {
		s.K("exec", pod, "--", "wget", "-q", "-O/dev/null", "http://"+ip+"/?second")
		if !strings.Contains(follow(), "GET /?second") {
			return fmt.Errorf("it shows %q", follow())
		}
		return nil
	})
}

func checkExec(s *Space, pod string) {
	if out := s.K("exec", pod, "--", "hostname"); out != pod+"\n" {
		s.Errorf("hostname is %q", out)
	}
	if r := s.KResult("exec", pod, "--", "sh", "-c", "echo out; echo err >&2; exit 7"); r.Code != 7 ||
		r.Out != "out\n" || !strings.HasPrefix(r.Err, "err\n") {
		s.Errorf("got code %d, %q and %q", r.Code, r.Out, r.Err)
	}
	r := s.KubectlResult(s.Context(), "through stdin", "-n", s.Namespace, "exec", "-i", pod, "--", "cat")
	if must(s, r) != "through stdin" {
		s.Errorf("cat returned %q", r.Out)
	}
	command, err := kubectlCommand()
	if err != nil {
		s.Fatal(err)
	}
	// The size comes after the start, by a message of its own.
	const ask = `until [ "$(stty size)" = "40 100" ]; do sleep 0.1; done; echo size $(stty size); tty; exit` + "\n"
	shown := onTerminal(s, s.env(), ask, nil, append(command, "-n", s.Namespace, "exec", "-it", pod, "--", "sh")...)
	if !strings.Contains(shown, "size 40 100") || !strings.Contains(shown, "/dev/pts/") {
		s.Errorf("exec -it shows %q, want the size of the terminal and its name", shown)
	}
}

func checkCopy(s *Space, pod string) {
	dir := s.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "there"), []byte("cargo"), 0o644); err != nil {
		s.Fatal(err)
	}
	s.K("cp", filepath.Join(dir, "there"), pod+":/tmp/cargo")
	s.K("cp", pod+":/tmp/cargo", filepath.Join(dir, "back"))
	if data, err := os.ReadFile(filepath.Join(dir, "back")); err != nil || string(data) != "cargo" {
		s.Errorf("%q came back, %v", data, err)
	}
}

func checkPortForward(s *Space, pod string) {
	for _, target := range []string{"pod/" + pod, "service/myapp"} {
		output := s.background("port-forward", target, ":80")
		line := regexp.MustCompile(`Forwarding from 127\.0\.0\.1:(\d+)`)
		Eventually(s, deadline, "port-forward to "+target, func(ctx context.Context) error {
			found := line.FindStringSubmatch(output())
			if found == nil {
				return fmt.Errorf("it says %q", output())
			}
			return get(ctx, "http://127.0.0.1:"+found[1], "nginx:1.21.6")
		})
	}
}

func checkDescribe(s *Space, pod string) {
	text := s.K("describe", "pod", pod)
	for _, event := range []string{"Scheduled", "Pulling", "Pulled", "Created", "Started"} {
		if !regexp.MustCompile(`Normal +`+event+` `).MatchString(text) &&
			!(strings.HasPrefix(event, "Pull") && strings.Contains(text, "already present")) {
			s.Errorf("describe shows no event %s:\n%s", event, text)
		}
	}
	if text := s.K("describe", "deployment", "myapp"); !strings.Contains(text, "ScalingReplicaSet") ||
		!strings.Contains(text, "3 desired | 3 updated | 3 total | 3 available | 0 unavailable") {
		s.Errorf("describe of the Deployment:\n%s", text)
	}
	if text := s.K("describe", "service", "myapp"); strings.Count(text, ":80") < 3 {
		s.Errorf("describe of the Service names no endpoints:\n%s", text)
	}
}

// checkHealing: a deleted pod is replaced, a killed process is started again in its pod.
func checkHealing(s *Space) {
	victim := s.Pods("app=myapp")[0]
	s.K("delete", "pod", victim.Name)
	s.K("rollout", "status", "deployment/myapp", "--timeout=2m")
	// That the rollout is done may still be said of the time before.
	var pods []corev1.Pod
	Eventually(s, deadline, "three ready pods, without the one that was deleted", func(context.Context) error {
		pods = s.Pods("app=myapp")
		if len(pods) != 3 ||
			slices.ContainsFunc(pods, func(p corev1.Pod) bool { return p.UID == victim.UID || !Ready(&p) }) {
			return errors.New(phases(pods))
		}
		return nil
	})
	pod := pods[0]
	// A pod without a readiness probe is ready before nginx has said anything.
	Eventually(s, deadline, "the first words of nginx", func(context.Context) error {
		if log := s.K("logs", pod.Name); !strings.Contains(log, "start worker process") {
			return fmt.Errorf("the log is %q", log)
		}
		return nil
	})
	KillContainer(s, pod.Status.ContainerStatuses[0].ContainerID)
	again := s.WaitPod(pod.Name, deadline, "restarted once and ready", func(p *corev1.Pod) bool {
		return Ready(p) && p.Status.ContainerStatuses[0].RestartCount == 1
	})
	last := again.Status.ContainerStatuses[0].LastTerminationState.Terminated
	if last == nil || last.ExitCode != 137 || again.UID != pod.UID || again.Status.PodIP != pod.Status.PodIP {
		s.Errorf("the container ended as %v; its pod is %s at %s, it was %s at %s", last, again.UID, again.Status.PodIP,
			pod.UID, pod.Status.PodIP)
	}
	if log := s.K("logs", "--previous", pod.Name); !strings.Contains(log, "start worker process") {
		s.Errorf("logs --previous: %q", log)
	}
}

func checkScale(s *Space) {
	for _, n := range []int{5, 3} {
		s.K("scale", "deployment", "myapp", fmt.Sprintf("--replicas=%d", n))
		Eventually(s, deadline, fmt.Sprintf("%d ready pods", n), func(context.Context) error {
			pods := s.Pods("app=myapp")
			if len(pods) != n || slices.ContainsFunc(pods, func(p corev1.Pod) bool { return !Ready(&p) }) {
				return fmt.Errorf("there are %d pods", len(pods))
			}
			return nil
		})
	}
}

// checkRollout: a rolling update, one that cannot work, the history, and the way back.
func checkRollout(s *Space) {
	images := func() string {
		var out []string
		for _, p := range s.Pods("app=myapp") {
			out = append(out, p.Spec.Containers[0].Image)
		}
		slices.Sort(out)
		return strings.Join(slices.Compact(out), " ")
	}
	s.K("set", "image", "deployment/myapp", "nginx=nginx:1.22")
	s.K("rollout", "status", "deployment/myapp", "--timeout=60s")
	if got := images(); got != "nginx:1.22" {
		s.Errorf("after the update the pods run %s", got)
	}
	s.K("set", "image", "deployment/myapp", "nginx=nginx:no-such-tag")
	// brief: the test wants the time-out
	if r := s.KResult("rollout", "status", "deployment/myapp", "--timeout=5s"); r.Error == nil {
		s.Error("a rollout with an image that does not exist succeeded")
	}
	if ready := s.K("get", "deployment", "myapp", "-o", "jsonpath={.status.availableReplicas}"); ready != "3" &&
		ready != "2" {
		s.Errorf("during a failing update %s pods are available", ready)
	}
	history := s.K("rollout", "history", "deployment/myapp")
	if !regexp.MustCompile(`(?m)^1 .*\n2 .*\n3 `).MatchString(history) {
		s.Errorf("history:\n%s", history)
	}
	s.K("rollout", "undo", "deployment/myapp")
	s.K("rollout", "status", "deployment/myapp", "--timeout=60s")
	if got := images(); got != "nginx:1.22" {
		s.Errorf("after undo the pods run %s", got)
	}
	s.K("rollout", "undo", "deployment/myapp", "--to-revision=1")
	s.K("rollout", "status", "deployment/myapp", "--timeout=60s")
	if got := images(); got != "nginx:1.21.6" {
		s.Errorf("after undo to the first revision the pods run %s", got)
	}
}

// checkDelete: the applied objects go, and so do all objects that they caused.
func checkDelete(s *Space) {
	s.K("delete", "-f", examples+"my-app.yaml", "--timeout=60s")
	Eventually(s, deadline, "nothing is left", func(context.Context) error {
		if out := s.K("get", "all,endpointslices,endpoints", "-o", "name"); out != "" {
			return fmt.Errorf("there is still\n%s", out)
		}
		return nil
	})
}

// background runs kubectl until the test ends; it returns its output so far.
func (s *Space) background(args ...string) func() string {
	s.Helper()
	command, err := kubectlCommand()
	if err != nil {
		s.Fatal(err)
	}
	command = append(append(command, "-n", s.Namespace), args...)
	cmd := exec.CommandContext(s.Context(), command[0], command[1:]...)
	cmd.Env = append(os.Environ(), s.env()...)
	out := new(syncbuf.Buffer)
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return out.String
}
