// go-redsync behind the lines that tests/interop/programs.py describes. Its 32 tries are 50 to 250 ms apart, as by
// default.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/go-redsync/redsync/v4"
	redispool "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

// A worker has one mutex at a time; the driver waits for its reply before it sends the next command.
type worker struct {
	id       string
	commands chan []string
	held     *redsync.Mutex
}

func (w *worker) acquire(locks *redsync.Redsync, name string, lease time.Duration) string {
	mutex := locks.NewMutex(name, redsync.WithExpiry(lease), redsync.WithFailFast(true))
	var taken *redsync.ErrTaken
	switch err := mutex.Lock(); {
	case err == nil:
		w.held = mutex
		return "won"
	case errors.Is(err, redsync.ErrFailed) || errors.As(err, &taken):
		return "lost"
	default:
		return "failed " + oneLine(err)
	}
}

func (w *worker) release() string {
	if ok, err := w.held.Unlock(); err != nil || !ok {
		return "failed " + oneLine(err)
	}
	return "released"
}

func (w *worker) run(locks *redsync.Redsync) {
	for words := range w.commands {
		if words[0] == "release" {
			fmt.Println(w.id + " " + w.release())
			continue
		}
		ms, _ := strconv.Atoi(words[3])
		fmt.Println(w.id + " " + w.acquire(locks, words[2], time.Duration(ms)*time.Millisecond))
	}
}

func oneLine(err error) string {
	return strings.ReplaceAll(fmt.Sprint(err), "\n", " ")
}

func main() {
	var pools []redispool.Pool
	for _, url := range os.Args[1:] {
		options, err := redis.ParseURL(url)
		if err != nil {
			panic(err)
		}
		pools = append(pools, goredis.NewPool(redis.NewClient(options)))
	}
	locks := redsync.New(pools...)
	workers := map[string]*worker{}
	fmt.Println("ready")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		words := strings.Fields(lines.Text())
		known, ok := workers[words[1]]
		if !ok {
			known = &worker{id: words[1], commands: make(chan []string, 1)}
			workers[words[1]] = known
			go known.run(locks)
		}
		known.commands <- words
	}
}
