// SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
//
// Which mutant this process is: called once by each mutated module, where its registers begin
// (netlist.py). $KELP_MUTANT is the number. With $KELP_MUTANTS, "SECONDS NUMBER NUMBER …", the
// process forks once for each of the numbers, one after the other, and ends: what it has loaded is
// loaded for all. A fork lives in a folder that is called like its number, has so many seconds of
// processor time, and leaves "NUMBER EXITCODE" in the file `ended`; 128 and more stand for a signal.

#ifndef KELP_MUTANT_H
#define KELP_MUTANT_H

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

inline void kelp_move_to(const std::string& folder, rlim_t seconds) {
    const rlimit limit{seconds, seconds};
    setrlimit(RLIMIT_CPU, &limit);
    const int log = mkdir(folder.c_str(), 0777) || chdir(folder.c_str())
                        ? -1
                        : open("sim.log", O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (log < 0 || dup2(log, 1) < 0 || dup2(log, 2) < 0) _exit(2);
    setenv("KELP_MUTANT", folder.c_str(), 1);
    // Verilator's worker thread is not in a fork, and its destructor waits for it.
    on_exit(
        [](int status, void*) {
            std::fflush(nullptr);
            _exit(status);
        },
        nullptr);
}

inline int kelp_mutant() {
    if (const char* number = std::getenv("KELP_MUTANT")) return std::atoi(number);
    const char* all = std::getenv("KELP_MUTANTS");
    if (!all) return 0;
    std::istringstream words(all);
    std::ofstream ended("ended");
    rlim_t seconds = 0;
    int number = 0, status = 0;
    words >> seconds;
    while (words >> number) {
        std::fflush(nullptr);
        const pid_t child = fork();
        if (!child) {
            kelp_move_to(std::to_string(number), seconds);
            return number;
        }
        if (child < 0 || waitpid(child, &status, 0) < 0) _exit(2);
        const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        ended << number << ' ' << code << std::endl;
    }
    _exit(0);
}

#endif
