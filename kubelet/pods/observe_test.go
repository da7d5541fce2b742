package pods

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/barque/barque/kubelet/cri"
)

// logLine is a line of a container's log as the runtime writes it; P marks one that goes on.
func logLine(tag, text string) string {
	return "2026-01-02T03:04:05.678901234Z stdout " + tag + " " + text + "\n"
}

func TestLastWords(t *testing.T) {
	var numbered, last80 strings.Builder
	for i := range 100 {
		numbered.WriteString(logLine("F", fmt.Sprint(i)))
		if i >= 20 {
			fmt.Fprintln(&last80, i)
		}
	}
	digits := strings.Repeat("0123456789", 1700)
	for _, c := range []struct {
		name      string
		log, file string
		fallback  bool
		exit      int32
		message   string // of the runtime
		want      string
	}{
		{"a last line without an end", logLine("P", "DONE"), "", true, 1, "", "DONE"},
		{"lines", logLine("F", "one") + logLine("F", "") + logLine("F", "two"), "", true, 1, "", "one\n\ntwo\n"},
		{"a line in parts", logLine("P", "a") + logLine("P", "b") + logLine("F", "c"), "", true, 1, "", "abc\n"},
		{"at most 80 lines", numbered.String(), "", true, 1, "", last80.String()},
		{"at most 2048 bytes", logLine("P", digits), "", true, 1, "", digits[len(digits)-2048:]},
		{"the log is for failures", logLine("F", "x"), "", true, 0, "", ""},
		{"and for those who want it", logLine("F", "x"), "", false, 1, "", ""},
		{"the file comes first", logLine("F", "x"), "said", true, 1, "", "said"},
		{"the last 4096 bytes of the file", "", digits, true, 0, "", digits[len(digits)-4096:]},
		{"the runtime's word before it", "", "said", true, 128, "cannot start", "cannot start: said"},
		{"the runtime's word alone", "", "", false, 128, "cannot start", "cannot start"},
	} {
		dir := t.TempDir()
		write := func(name, text string) string {
			path := filepath.Join(dir, name)
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			return path
		}
		s := &runtimeapi.ContainerStatus{Id: "c", ExitCode: c.exit, Message: c.message, LogPath: write("log", c.log),
			Annotations: map[string]string{cri.AnnotationTerminationFile: write("file", c.file)}}
		if c.fallback {
			s.Annotations[cri.AnnotationTerminationPolicy] = string(v1.TerminationMessageFallbackToLogsOnError)
		}
		w := newWorker(&Manager{}, "u")
		if got := w.lastWords(t.Context(), s); got != c.want {
			t.Errorf("%s: %d bytes %q, want %d bytes %q", c.name, len(got), clip(got), len(c.want), clip(c.want))
		}
	}
}

func clip(s string) string { return s[:min(len(s), 60)] }

// TestMessagesOfOnePod: 12 KiB in all, the same share for each container.
func TestMessagesOfOnePod(t *testing.T) {
	pod := podWith(v1.RestartPolicyNever, "a", "b", "c")
	pod.Spec.InitContainers = []v1.Container{{Name: "i"}}
	in := StatusInput{Facts: Facts{Pod: pod}, Ending: true}
	for _, name := range []string{"i", "a", "b", "c"} {
		in.Observed.Containers = append(in.Observed.Containers, Container{ID: name + "1", Name: name, State: Exited,
			Attempt: 1, Message: strings.Repeat("x", 4096)}, Container{ID: name + "0", Name: name, State: Exited, Message: strings.Repeat("y", 4096)})
	}
	s := Status(in)
	for _, c := range append(s.ContainerStatuses, s.InitContainerStatuses...) {
		if now, before := c.State.Terminated, c.LastTerminationState.Terminated; len(now.Message) != 3072 || len(before.Message) != 3072 {
			t.Errorf("container %s: %d and %d bytes, want 3072 each", c.Name, len(now.Message), len(before.Message))
		}
	}
}

// TestResourcesInStatus: the status has the actual resources of a container, as they were written,
// and the allocated ones.
func TestResourcesInStatus(t *testing.T) {
	ask := func(cpu, memory string) v1.ResourceRequirements {
		list := v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu), v1.ResourceMemory: resource.MustParse(memory)}
		return v1.ResourceRequirements{Requests: list, Limits: list.DeepCopy()}
	}
	pod := podWith(v1.RestartPolicyAlways, "a")
	pod.Spec.Containers[0].Resources = ask("0.1", "64Mi")
	first := limitsOf(pod, &pod.Spec.Containers[0])
	in := StatusInput{Facts: Facts{Pod: pod}, Runtime: "containerd"}
	in.Observed.Containers = []Container{{ID: "1", Name: "a", State: Running, Attempt: 1, Limits: &first}}
	pod.Status = Status(in)

	pod.Spec.Containers[0].Resources = ask("0.2", "128Mi")
	given := limitsOf(pod, &pod.Spec.Containers[0])
	half := given
	half.Memory = first.Memory
	other := Limits{Shares: 307, Quota: 30000, Memory: 96 << 20}
	for _, c := range []struct {
		name   string
		limits *Limits
		want   string
	}{
		{"nothing has changed yet", &first, "100m 100m 64Mi 64Mi"},
		{"CPU has", &half, "200m 200m 64Mi 64Mi"},
		{"all has", &given, "200m 200m 128Mi 128Mi"},
		{"somebody else has set limits", &other, "300m 300m 96Mi 64Mi"},
		{"the runtime does not tell", nil, "100m 100m 64Mi 64Mi"},
	} {
		in.Observed.Containers[0].Limits = c.limits
		s := Status(in).ContainerStatuses[0]
		r := s.Resources
		if got := r.Requests.Cpu().String() + " " + r.Limits.Cpu().String() + " " + r.Limits.Memory().String() + " " + r.Requests.Memory().String(); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
		if got := s.AllocatedResources.Cpu().String(); got != "200m" {
			t.Errorf("%s: %s is allocated", c.name, got)
		}
	}
}

// TestContainerThatNeverStarted: the kubelet ended between making a container and starting it, and
// has removed it since. It is made anew, also if it runs once: nothing was lost.
func TestContainerThatNeverStarted(t *testing.T) {
	for name, c := range map[string]struct {
		before v1.ContainerState
		ending bool
		lost   bool
	}{
		"made":               {v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: reasonCreating}}, false, false},
		"made, the pod ends": {v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: reasonCreating}}, true, true},
		"ran":                {v1.ContainerState{Running: &v1.ContainerStateRunning{}}, false, true},
	} {
		pod := podWith(v1.RestartPolicyNever, "a")
		pod.Status.ContainerStatuses = []v1.ContainerStatus{{Name: "a", ContainerID: "containerd://x", State: c.before}}
		pod.Status = Status(StatusInput{Facts: Facts{Pod: pod}, Ending: c.ending})
		ended := pod.Status.ContainerStatuses[0].State.Terminated
		if (ended != nil) != c.lost || ended != nil && ended.Reason != "ContainerStatusUnknown" {
			t.Errorf("%s: %+v", name, pod.Status.ContainerStatuses[0].State)
		}
		if lost(pod, "a") != c.lost {
			t.Errorf("%s: the next look takes it for lost, or not: %+v", name, pod.Status.ContainerStatuses[0].State)
		}
	}
}
