package resourcemetrics

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// point is the usage of a node or a container at one moment.
type point struct {
	cpu    uint64 // core nanoseconds since start
	memory uint64 // working set in bytes
	at     time.Time
	start  time.Time // zero when it is not reported

	has seen
}

// seen are the metrics that a point has.
type seen uint8

const (
	seenCPU seen = 1 << iota
	seenMemory
	complete = seenCPU | seenMemory
)

// sample is one answer of a kubelet.
type sample struct {
	node point
	pods map[types.NamespacedName]map[string]point // by container
}

// errMalformed is returned when a kubelet's answer is not in the text format of Prometheus.
var errMalformed = errors.New("malformed metrics")

// metric describes a line of a kubelet's answer.
type metric struct {
	set func(p *point, value float64)
	// container is whether it has the labels of a container.
	container bool
}

// metrics are the metrics that are read, by their names. Kubelets have long reported more,
// and will.
var metrics = map[string]metric{
	"node_cpu_usage_seconds_total":       {set: setCPU},
	"node_memory_working_set_bytes":      {set: setMemory},
	"container_cpu_usage_seconds_total":  {set: setCPU, container: true},
	"container_memory_working_set_bytes": {set: setMemory, container: true},
	"container_start_time_seconds":       {set: setStart, container: true},
}

func setCPU(p *point, seconds float64) { p.cpu, p.has = amount(seconds*1e9), p.has|seenCPU }

func setMemory(p *point, n float64) { p.memory, p.has = amount(n), p.has|seenMemory }

func setStart(p *point, seconds float64) {
	if seconds > 0 && seconds < math.MaxInt64/1e9 {
		p.start = time.Unix(0, int64(seconds*1e9))
	}
}

// amount turns an invalid amount into 0.
func amount(v float64) uint64 {
	if !(v > 0) {
		return 0
	}
	if v >= math.MaxInt64 {
		return math.MaxInt64
	}
	return uint64(v)
}

// parse reads the text format of Prometheus, as far as kubelets use it. Samples without a time are
// of now. Lines of other metrics are skipped.
func parse(text []byte, now time.Time) (*sample, error) {
	s := &sample{pods: map[types.NamespacedName]map[string]point{}}
	for number := 1; len(text) > 0; number++ {
		line, rest, _ := bytes.Cut(text, []byte{'\n'})
		text = rest
		line = bytes.TrimSpace(line)
		end := bytes.IndexAny(line, "{ \t")
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		if end < 0 {
			return nil, fmt.Errorf("%w: line %d has no value", errMalformed, number)
		}
		m, known := metrics[string(line[:end])]
		if !known {
			continue
		}
		if err := s.add(m, line[end:], now); err != nil {
			return nil, fmt.Errorf("%w: line %d: %w", errMalformed, number, err)
		}
	}
	return s, nil
}

// add notes one line of a metric, without its name.
func (s *sample) add(m metric, line []byte, now time.Time) error {
	var of owner
	if line[0] == '{' {
		var err error
		if line, err = of.read(line[1:]); err != nil {
			return err
		}
	}
	fields := bytes.Fields(line)
	if len(fields) == 0 || len(fields) > 2 {
		return fmt.Errorf("%d fields where a value and a time are expected", len(fields))
	}
	value, err := strconv.ParseFloat(string(fields[0]), 64)
	if err != nil {
		return err
	}
	at := now
	if len(fields) == 2 {
		ms, err := strconv.ParseInt(string(fields[1]), 10, 64)
		if err != nil {
			return err
		}
		at = time.UnixMilli(ms)
	}
	if !m.container {
		s.node.note(m, value, at)
		return nil
	}
	if of.container == "" || of.pod == "" || of.namespace == "" {
		return errors.New("a container without its name, pod or namespace")
	}
	pod := types.NamespacedName{Namespace: of.namespace, Name: of.pod}
	containers := s.pods[pod]
	if containers == nil {
		containers = map[string]point{}
		s.pods[pod] = containers
	}
	p := containers[of.container]
	p.note(m, value, at)
	containers[of.container] = p
	return nil
}

// note takes the time of the CPU's sample, between two of which the rate is.
func (p *point) note(m metric, value float64, at time.Time) {
	cpu := p.has & seenCPU
	m.set(p, value)
	if p.at.IsZero() || p.has&seenCPU != cpu {
		p.at = at
	}
}

// owner is the container that a line is about.
type owner struct{ container, pod, namespace string }

// read takes labels up to their closing brace, and returns the rest.
func (o *owner) read(line []byte) ([]byte, error) {
	for {
		line = bytes.TrimLeft(line, ", \t")
		if len(line) > 0 && line[0] == '}' {
			return line[1:], nil
		}
		name, rest, found := bytes.Cut(line, []byte{'='})
		rest = bytes.TrimLeft(rest, " \t")
		if !found || len(rest) == 0 || rest[0] != '"' {
			return nil, errors.New("a label without a value")
		}
		end := 1
		for end < len(rest) && rest[end] != '"' {
			if rest[end] == '\\' {
				end++
			}
			end++
		}
		if end >= len(rest) {
			return nil, errors.New("a label that does not end")
		}
		// Names of containers, pods and namespaces have no character that is escaped.
		switch value := rest[1:end]; string(bytes.TrimSpace(name)) {
		case "container":
			o.container = string(value)
		case "pod":
			o.pod = string(value)
		case "namespace":
			o.namespace = string(value)
		}
		line = rest[end+1:]
	}
}
